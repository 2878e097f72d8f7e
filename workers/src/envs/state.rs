//! The frame around an environment's state on its way: version, kind, and a checksum, so that bytes
//! from elsewhere are refused and never played on.

use super::EnvError;
use super::level::fnv1a;

/// The layout that this build writes and reads.
const VERSION: u8 = 1;

/// Frames a state: `[version, kind, body.., checksum (4)]`.
pub(super) fn seal(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 6);
    bytes.extend([VERSION, kind]);
    bytes.extend(body);
    bytes.extend(checksum(&bytes));
    bytes
}

/// The body of a state of this kind, `N` bytes long.
pub(super) fn open<const N: usize>(
    environment: &'static str,
    kind: u8,
    bytes: &[u8],
) -> Result<[u8; N], EnvError> {
    let fail = |reason: String| EnvError::State { environment, reason };
    let (framed, sum) =
        bytes.split_last_chunk::<4>().ok_or_else(|| fail(format!("bytes={} are too few", bytes.len())))?;
    if *sum != checksum(framed) {
        return Err(fail("the checksum is wrong".to_owned()));
    }
    match framed {
        [VERSION, k, body @ ..] if *k == kind => {
            body.try_into().map_err(|_| fail(format!("bytes={}, not {N}", body.len())))
        }
        [version, k, ..] => {
            Err(fail(format!("version={version} kind={k}, not version={VERSION} kind={kind}")))
        }
        _ => Err(fail("it is empty".to_owned())),
    }
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let hash = fnv1a(bytes);
    ((hash >> 32) as u32 ^ hash as u32).to_le_bytes()
}
