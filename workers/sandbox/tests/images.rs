//! Layers of images that would be more than their bound of bytes lets them, on the real program. What else a layer
//! may not have is tested beside the service, which gets layers from elsewhere.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use millrace_sandbox::live::{Digest, Exec, Host, ImageCache, LiveError, Settings, Snapshot, Spec};
use sha2::Digest as _;
use tar::{EntryType, Header};
use tempfile::TempDir;

const MIB: u64 = 1024 * 1024;

/// Unpacks a layer into a folder, with this bound. Whatever came of it, nothing half done is left.
async fn unpacked(folder: &TempDir, layer: &[u8], layer_bytes: u64) -> (Host, Result<Snapshot, LiveError>) {
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut cache = ImageCache::open(folder.path()).unwrap();
    cache.layer_bytes = layer_bytes;
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(layer).unwrap();
    let packed = packed.finish().unwrap();
    let name: String = sha2::Sha256::digest(&packed).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(folder.path().join("blobs").join(&name), packed).unwrap();
    let settings = Settings { warm: 0, ..Settings::new(env!("CARGO_BIN_EXE_millrace-sandbox")) };
    let host = Host::open(settings).await.unwrap();
    let image = host.image(&cache, &[Digest::parse(&name).unwrap()]).await;
    let left = std::fs::read_dir(folder.path().join("layers")).unwrap().count();
    assert_eq!(left, usize::from(image.is_ok()));
    (host, image)
}

async fn refused(layer: &[u8], layer_bytes: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    unpacked(&folder, layer, layer_bytes).await.1.unwrap_err().to_string()
}

fn header(kind: EntryType, name: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    header
}

/// A file that begins with `kept`, and has a hole up to its size.
fn sparse(size: u64) -> Vec<u8> {
    let mut header = header(EntryType::GNUSparse, "holes", 4);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.sparse[0].set_offset(0);
    gnu.sparse[0].set_length(4);
    gnu.sparse[1].set_offset(size);
    gnu.sparse[1].set_length(0);
    gnu.set_real_size(size);
    header.set_cksum();
    [header.as_bytes(), &b"kept"[..], &[0; 508], &[0; 1024]].concat()
}

#[tokio::test]
async fn a_sparse_file_counts_with_its_holes_before_they_are_written() {
    let whole = refused(&sparse(10 << 40), MIB).await;
    assert!(whole.contains("holes") && whole.contains("more than 1048576 bytes"), "{whole}");
    // One that is within is there as a whole.
    let folder = tempfile::tempdir().unwrap();
    let (host, image) = unpacked(&folder, &sparse(MIB), MIB).await;
    let sandbox = host.fork(&image.unwrap(), Spec::default()).await.unwrap();
    let seen = sandbox.exec(Exec::shell("head -c 4 /holes; stat -c %s /holes"), b"").await.unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "kept1048576\n", "{seen:?}");
}

#[tokio::test]
async fn names_without_end_are_not_read_into_memory() {
    const LONG: usize = 64 << 20;
    let end = [header(EntryType::Regular, "short", 0).as_bytes(), &[0; 1024][..]].concat();
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let long =
            [header(kind, "././@LongLink", LONG as u64).as_bytes(), &vec![b'x'; LONG][..], &end].concat();
        let refused = refused(&long, 16 << 30).await;
        assert!(refused.contains("headers have more than 1048576 bytes"), "{kind:?}: {refused}");
    }
    let longer =
        [header(EntryType::GNULongName, "././@LongLink", 5120).as_bytes(), &[b'x'; 5120][..], &end].concat();
    let longer = refused(&longer, MIB).await;
    assert!(longer.contains("has 5120 bytes; a path has at most 4096"), "{longer}");
    // One that a path can have is taken.
    let name = format!("{}/file", "folder".repeat(30));
    let mut long = tar::Builder::new(Vec::new());
    let mut file = header(EntryType::Regular, "x", 3);
    long.append_data(&mut file, &name, &b"in\n"[..]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (host, image) = unpacked(&folder, &long.into_inner().unwrap(), MIB).await;
    let sandbox = host.fork(&image.unwrap(), Spec::default()).await.unwrap();
    assert_eq!(sandbox.read(&format!("/{name}"), 10).await.unwrap(), b"in\n");
}
