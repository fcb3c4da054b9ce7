//! Many threads and a small ring: every slot that looks whole is one breadcrumb of one thread.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use firstfault_format::black_box::{MAGIC, SIZE, checksum, header, index_of, ring, state};
use firstfault_handler::black_box::{self, Header, breadcrumb, step, write_members};
use firstfault_handler::json::Writer;

const THREADS: usize = 8;
const EACH: usize = 20_000;

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// The number and the text of a slot, `None` where it is empty or being written.
fn slot(words: &[u64], number: usize) -> Option<(u64, String)> {
    let first = ring::FIRST + number * ring::SLOT_WORDS;
    let slot = &words[first..first + ring::SLOT_WORDS];
    let index = index_of(slot[ring::SEQUENCE])?;
    assert_eq!(index as usize % ring::SLOTS, number);
    let content = [slot[0]]
        .into_iter()
        .chain(slot[ring::TIME_NS..].iter().copied());
    if checksum(content) != slot[ring::CHECKSUM] {
        return None;
    }
    let lengths = slot[ring::LENGTHS];
    let text: Vec<u8> = slot[ring::TEXT..]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let length = (lengths & 0xff) + (lengths >> 8 & 0xff);
    Some((
        index,
        String::from_utf8(text[..length as usize].to_vec()).unwrap(),
    ))
}

fn record() -> serde_json::Value {
    let mut room = vec![0; 32 * 1024];
    let mut writer = Writer::new(&mut room, None);
    writer.open(b'{');
    write_members(&mut writer);
    writer.close(b'}');
    let length = writer.finish().unwrap();
    serde_json::from_slice(&room[..length]).unwrap()
}

#[test]
fn one_box_from_its_first_word_to_its_last() {
    // One test, because a process has one box.
    breadcrumb("before there is a box", None);
    step(1);
    assert!(!black_box::is_open());
    let path = std::env::temp_dir().join(format!("firstfault-box-{}", std::process::id()));
    let name = CString::new(path.to_str().unwrap())
        .unwrap()
        .into_boxed_c_str();
    let name: &'static _ = Box::leak(name);
    let header = Header {
        pid: 7,
        rank: Some(3),
        host: "node",
        ..Header::default()
    };
    black_box::create(name, None, &header).unwrap();
    assert_eq!(black_box::create(name, None, &header), Err(libc::EEXIST));
    let metadata = path.metadata().unwrap();
    assert_eq!(
        (metadata.len(), metadata.permissions().mode() & 0o777),
        (SIZE as u64, 0o600)
    );

    let long = "ä".repeat(100);
    breadcrumb(&long, Some(&long));
    breadcrumb("empty", Some(""));
    breadcrumb("alone", None);
    step(-5);
    let told = record();
    let told: Vec<(&str, Option<&str>)> = told["breadcrumbs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["value"].as_str()))
        .collect();
    let half = "ä".repeat(24);
    assert_eq!(
        told,
        [(&*half, Some(&*half)), ("empty", Some("")), ("alone", None)]
    );
    assert_eq!(record()["step"], -5);

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    for number in 0..EACH {
                        breadcrumb(
                            &format!("{thread}"),
                            Some(&format!("{thread}").repeat(number % 90)),
                        );
                    }
                })
            })
            .collect();
        // The reader in the handler runs while others write.
        let reader = scope.spawn(|| {
            let mut records = 0;
            while !done.load(Ordering::Relaxed) {
                let found = record();
                let entries = found["breadcrumbs"].as_array().cloned().unwrap_or_default();
                assert!(entries.len() <= 32);
                for entry in &entries {
                    let name = entry["name"].as_str().unwrap();
                    assert!(
                        entry["value"]
                            .as_str()
                            .unwrap_or("")
                            .replace(name, "")
                            .is_empty()
                    );
                }
                records += 1;
            }
            records
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });

    let words = words(&std::fs::read(&path).unwrap());
    assert_eq!(words[header::MAGIC], MAGIC);
    assert_eq!(words[header::STATE], state::RUNNING);
    assert_eq!(words[header::RANK], 3);
    assert_eq!(words[header::LOCAL_RANK], u64::MAX);
    assert_eq!(words[header::NEXT], (THREADS * EACH + 3) as u64);
    let found: Vec<(u64, String)> = (0..ring::SLOTS)
        .filter_map(|number| slot(&words, number))
        .collect();
    for (_, text) in &found {
        let thread = &text[..1];
        assert!(text.replace(thread, "").is_empty(), "torn: {text}");
    }
    let indices: BTreeSet<u64> = found.iter().map(|(index, _)| *index).collect();
    assert_eq!(indices.len(), found.len());
    // What was lost is counted, and nothing else is missing: no slot stays locked.
    assert_eq!(found.len(), ring::SLOTS);
    let oldest = words[header::NEXT] - ring::SLOTS as u64;
    let late = indices.iter().filter(|index| **index < oldest).count() as u64;
    assert!(
        late <= words[header::LOST],
        "{late} old ones, {} lost",
        words[header::LOST]
    );
    std::fs::remove_file(&path).unwrap();
}
