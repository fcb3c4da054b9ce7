//! What a directory's file system can be trusted with.

use std::path::{Path, PathBuf};

/// File systems over a network, which may not answer, and on which a shared mapping writes pages over it: 9p, AFS,
/// BeeGFS, Ceph, CIFS, FUSE (which may be anything), GFS2, GPFS, Lustre, NFS, OCFS2, PanFS, SMB, SMB2.
///
/// Source: linux/magic.h, and the vendors' own headers.
const NETWORK: [u32; 14] = [
    0x0102_1997,
    0x5346_414f,
    0x1983_0326,
    0x00c3_6400,
    0xff53_4d42,
    0x6573_5546,
    0x0116_1970,
    0x4750_4653,
    0x0bd0_0bd0,
    0x6969,
    0x7461_636f,
    0xaad7_aaea,
    0x517b,
    0xfe53_4d42,
];

/// Returns whether a directory is on a network file system.
pub(crate) fn is_remote(directory: &Path) -> nix::Result<bool> {
    let found = nix::sys::statfs::statfs(directory)?;
    Ok(is_network(found.filesystem_type().0 as u32))
}

/// Returns the directories for what must be on this node, the best first.
pub(crate) fn local_directories() -> [PathBuf; 2] {
    [PathBuf::from("/dev/shm"), std::env::temp_dir()]
}

fn is_network(magic: u32) -> bool {
    NETWORK.contains(&magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known() {
        for magic in [0x6969, 0x0bd0_0bd0, 0x6573_5546, 0x4750_4653] {
            assert!(is_network(magic));
        }
        // ext4, tmpfs, overlayfs, XFS, Btrfs.
        for magic in [0xef53, 0x0102_1994, 0x794c_7630, 0x5846_5342, 0x9123_683e] {
            assert!(!is_network(magic));
        }
    }
}
