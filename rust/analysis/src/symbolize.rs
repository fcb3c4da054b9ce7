//! Addresses to functions, files and lines, from the modules' files on this machine.
//!
//! A name comes only from a file with the build ID that the record states: where the file is missing, is another build,
//! or nothing says which build it was, the reason is given and no name. Nothing of this runs in a dying process.

use crate::demangle;
use crate::failure::{Module, NativeFrame, Section};
use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer as Blazesym};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// At most this many inlined functions are shown of one address.
const MAX_INLINED: usize = 16;

/// Looks names up, and remembers files by build ID and names by address.
#[derive(Debug)]
pub struct Symbolizer {
    blazesym: Blazesym,
    images: HashMap<String, Result<Image, String>>,
    names: HashMap<(PathBuf, u64), Vec<Name>>,
}

/// A module's file, as it lies here.
#[derive(Debug, Clone)]
struct Image {
    path: PathBuf,
    /// What the file states as the address of its first byte: 0 but for programs that are not position-independent.
    first: u64,
}

/// One function at an address; inlined ones come before the one that they are inlined into.
#[derive(Debug, Clone)]
struct Name {
    symbol: String,
    file: Option<String>,
    line: Option<u32>,
    is_inlined: bool,
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new()
    }
}

impl Symbolizer {
    /// Returns a symbolizer that has read nothing yet.
    pub fn new() -> Self {
        let blazesym = Blazesym::builder().enable_auto_reload(false).build();
        Self {
            blazesym,
            images: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// Fills in the functions of all native frames and signal handlers of a record. Returns the modules whose files give no
    /// names, and why.
    ///
    /// An inlined function becomes a frame of its own, with the address of the one that it is inlined into.
    pub fn section(&mut self, section: &mut Section) -> Vec<(String, String)> {
        let mut missing: Vec<(String, String)> = Vec::new();
        for thread in &mut section.threads {
            let frames = std::mem::take(&mut thread.native);
            for frame in frames {
                match self.frame(&section.modules, &frame) {
                    Ok(frames) => thread.native.extend(frames),
                    Err(reason) => {
                        if let Some(module) = frame.module.and_then(|m| section.modules.get(m))
                            && !missing.iter().any(|(path, _)| *path == module.path)
                        {
                            missing.push((module.path.clone(), reason));
                        }
                        thread.native.push(as_exported(frame));
                    }
                }
            }
        }
        for handlers in &mut section.handlers {
            handlers.above_symbol = self.function(&section.modules, handlers.above.as_deref());
            handlers.below_symbol = self.function(&section.modules, handlers.below.as_deref());
        }
        missing
    }

    /// Returns the function at `<path>+<offset>`, `None` where the module's file cannot tell.
    fn function(&mut self, modules: &[Module], place: Option<&str>) -> Option<String> {
        let (path, offset) = place?.rsplit_once('+')?;
        let module = modules.iter().find(|module| module.path == path)?;
        let image = self.image(module).ok()?;
        let names = self.names(&image, hex(offset)?);
        names.last().map(|name| name.symbol.clone())
    }

    /// Returns a frame with its function, and the ones inlined there before it.
    ///
    /// # Errors
    /// Why the module's file cannot tell; a function that the file does not name is no error.
    pub fn frame(
        &mut self,
        modules: &[Module],
        frame: &NativeFrame,
    ) -> Result<Vec<NativeFrame>, String> {
        let (Some(module), Some(offset)) = (
            frame.module.and_then(|module| modules.get(module)),
            frame.offset.as_deref().and_then(hex),
        ) else {
            return Ok(vec![as_exported(frame.clone())]);
        };
        let image = self.image(module)?;
        let names = self.names(&image, offset);
        if names.is_empty() {
            return Ok(vec![as_exported(frame.clone())]);
        }
        Ok(names
            .iter()
            .map(|name| NativeFrame {
                symbol: Some(name.symbol.clone()),
                file: name.file.clone(),
                line: name.line,
                inlined: name.is_inlined,
                ..frame.clone()
            })
            .collect())
    }

    fn image(&mut self, module: &Module) -> Result<Image, String> {
        let build_id = module.build_id.as_deref().unwrap_or_default();
        if build_id.is_empty() {
            return Err("the record has no build ID of it".to_owned());
        }
        self.images
            .entry(format!("{build_id} {}", module.path))
            .or_insert_with(|| open(&module.path, build_id))
            .clone()
    }

    fn names(&mut self, image: &Image, offset: u64) -> Vec<Name> {
        let Some(address) = image.first.checked_add(offset) else {
            return Vec::new();
        };
        let key = (image.path.clone(), address);
        if let Some(names) = self.names.get(&key) {
            return names.clone();
        }
        let source = Source::Elf(Elf::new(&image.path));
        let found = self
            .blazesym
            .symbolize_single(&source, Input::VirtOffset(address));
        let mut names = Vec::new();
        if let Ok(Symbolized::Sym(symbol)) = found {
            for inlined in symbol.inlined.iter().rev().take(MAX_INLINED) {
                let code = inlined.code_info.as_ref();
                names.push(name(&inlined.name, code, true));
            }
            names.push(name(&symbol.name, symbol.code_info.as_deref(), false));
        }
        self.names.insert(key, names.clone());
        names
    }
}

/// A frame with the name that the record itself has, as people write it.
fn as_exported(mut frame: NativeFrame) -> NativeFrame {
    if let Some(symbol) = &mut frame.symbol {
        *symbol = demangle::function(symbol).into_owned();
    }
    frame
}

fn name(symbol: &str, code: Option<&CodeInfo<'_>>, is_inlined: bool) -> Name {
    Name {
        symbol: symbol.to_owned(),
        file: code.map(|code| code.to_path().to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line),
        is_inlined,
    }
}

/// Opens a module's file; the error says why it cannot serve.
fn open(path: &str, build_id: &str) -> Result<Image, String> {
    let path = Path::new(path);
    if !path.is_absolute() {
        return Err("no file".to_owned());
    }
    let status = path
        .metadata()
        .map_err(|_| "not on this machine".to_owned())?;
    if !status.is_file() {
        return Err("not a file on this machine".to_owned());
    }
    let unreadable = |error: &dyn std::fmt::Display| format!("cannot be read here: {error}");
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    let first = first_address(&file).ok_or_else(|| "not an ELF file on this machine".to_owned())?;
    let found = read_elf_build_id(path).map_err(|error| unreadable(&error))?;
    let found = found.map(|bytes| {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    });
    match found {
        Some(found) if found == build_id => Ok(Image {
            path: path.to_owned(),
            first,
        }),
        Some(_) => Err("another build on this machine".to_owned()),
        None => Err("without a build ID on this machine".to_owned()),
    }
}

/// Returns what an ELF file states as the address of its first byte, by its first loaded segment. Source: elf(5).
fn first_address(mut file: &File) -> Option<u64> {
    const PT_LOAD: u32 = 1;
    const PAGE: u64 = 4096;
    let mut header = [0; 64];
    file.read_exact(&mut header).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let word = |at: usize| Some(u64::from_le_bytes(*header.get(at..)?.first_chunk::<8>()?));
    let half = |at: usize| Some(u16::from_le_bytes(*header.get(at..)?.first_chunk::<2>()?));
    let (table, size, count) = (word(32)?, half(54)?, half(56)?);
    for index in 0..count {
        let mut segment = [0; 24];
        let at = table.checked_add(u64::from(index) * u64::from(size))?;
        file.read_exact_at(&mut segment, at).ok()?;
        let kind = u32::from_le_bytes(*segment.first_chunk::<4>()?);
        if kind == PT_LOAD {
            let address = u64::from_le_bytes(*segment.get(16..)?.first_chunk::<8>()?);
            return Some(address / PAGE * PAGE);
        }
    }
    None
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Thread;

    fn module(path: &str, build_id: Option<&str>) -> Module {
        Module {
            path: path.to_owned(),
            build_id: build_id.map(str::to_owned),
            base: None,
        }
    }

    fn reason(module: Module) -> String {
        let mut section = Section {
            modules: vec![module],
            threads: vec![Thread {
                native: vec![NativeFrame {
                    address: "0x1010".to_owned(),
                    module: Some(0),
                    offset: Some("0x10".to_owned()),
                    ..NativeFrame::default()
                }],
                ..Thread::default()
            }],
            ..Section::default()
        };
        let before = section.threads.clone();
        let missing = Symbolizer::new().section(&mut section);
        assert_eq!(section.threads, before, "no name without its file");
        missing.into_iter().map(|(_, reason)| reason).collect()
    }

    #[test]
    fn a_file_that_cannot_serve_gives_the_reason_and_no_name() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        for (path, build_id, expected) in [
            ("/nonexistent/libx.so", Some("00"), "not on this machine"),
            (own, Some("00ff"), "another build on this machine"),
            (own, None, "the record has no build ID of it"),
            ("/dev/null", Some("00"), "not a file on this machine"),
            ("/etc/passwd", Some("00"), "not an ELF file on this machine"),
            ("[vdso]", Some("00"), "no file"),
        ] {
            assert_eq!(reason(module(path, build_id)), expected, "{path}");
        }
    }

    #[test]
    fn an_address_in_this_test_has_its_function() {
        let own = std::env::current_exe().unwrap();
        let build_id = read_elf_build_id(&own).unwrap();
        let Some(build_id) = build_id else {
            return;
        };
        let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        // Where the function lies in the file, from where it lies in memory.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let base = maps
            .lines()
            .find(|line| line.ends_with(own.to_str().unwrap()));
        let base = base.and_then(|line| line.split('-').next()).unwrap();
        let base = u64::from_str_radix(base, 16).unwrap();
        let frame = NativeFrame {
            module: Some(0),
            offset: Some(format!("{:#x}", first_address as *const () as u64 - base)),
            ..NativeFrame::default()
        };
        let modules = [module(own.to_str().unwrap(), Some(&digits))];
        let frames = Symbolizer::new().frame(&modules, &frame).unwrap();
        let symbol = frames.last().unwrap().symbol.as_deref().unwrap();
        assert!(symbol.contains("symbolize::first_address"), "{symbol}");
    }
}
