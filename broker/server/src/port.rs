//! Ports for servers that start later, or again.

use std::net::TcpListener;
use std::{fs, io, ops::Range};

/// Ports below need privileges, or belong to well-known services more often.
const LOWEST: u16 = 10_000;
/// The kernel gives ports of this range to outgoing connections and to who asks for any.
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Tries to find a port that nobody has.
const TRIES: usize = 100;

/// A free TCP port of the loopback interface.
///
/// It is for a server that is started a moment later, or again after a crash. Meanwhile nothing takes it
/// by accident: the kernel gives it neither to outgoing connections nor to who asks for any port.
///
/// # Errors
/// The system gives no port at all.
pub fn free_port() -> io::Result<u16> {
    let bind = |port| TcpListener::bind(("127.0.0.1", port));
    let quiet = quiet(&fs::read_to_string(EPHEMERAL).unwrap_or_default());
    let listener = (0..TRIES).find_map(|_| bind(rand::random_range(quiet.clone()?)).ok());
    Ok(listener.map_or_else(|| bind(0), Ok)?.local_addr()?.port())
}

/// The larger range beside the one that the kernel gives ports from, which it tells as two numbers;
/// `None` if there is hardly any.
fn quiet(ephemeral: &str) -> Option<Range<u16>> {
    let mut ends = ephemeral.split_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (ends.next(), ends.next()) else { return None };
    let beside = [LOWEST..first, last.max(LOWEST)..u16::MAX];
    beside.into_iter().filter(|range| range.len() >= TRIES).max_by_key(Range::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_and_outside_of_what_the_kernel_gives() {
        let ephemeral = fs::read_to_string(EPHEMERAL).unwrap();
        let quiet = quiet(&ephemeral).unwrap();
        for _ in 0..50 {
            let port = free_port().unwrap();
            assert!(quiet.contains(&port), "{port} of {quiet:?}");
            TcpListener::bind(("127.0.0.1", port)).unwrap();
        }
    }

    #[test]
    fn the_larger_range_is_taken_where_there_is_one() {
        assert_eq!(quiet("32768\t60999\n"), Some(10_000..32_768));
        assert_eq!(quiet("1024 20000"), Some(20_000..65_535));
        assert_eq!(quiet("1024 65535"), None);
        assert_eq!(quiet("1024 65500"), None);
        assert_eq!(quiet(""), None);
    }
}
