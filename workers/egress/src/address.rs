//! Addresses by who may reach them: IANA's registries of special-purpose addresses, and the addresses
//! at which clouds answer for the machine itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Who may reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Programs of a sandbox, where a rule names its host.
    Public,
    /// The same, where the machine's operator permits the address besides. What it is.
    Private(&'static str),
    /// No program of a sandbox. What it is.
    Never(&'static str),
}

const LOOPBACK: Reach = Reach::Private("of the machine itself (loopback)");
const PRIVATE: Reach = Reach::Private("of a private network");
const SHARED: Reach = Reach::Private("of a provider's inner network (100.64.0.0/10)");
const UNSPECIFIED: Reach = Reach::Never("no address of a host (unspecified)");
const LINK: Reach = Reach::Never("of the link, where clouds answer for the machine (link-local)");
const METADATA: Reach = Reach::Never("where a cloud answers for the machine (metadata)");
const GROUP: Reach = Reach::Never("of many hosts (multicast or broadcast)");
const RESERVED: Reach = Reach::Never("of no host (reserved, documentation or benchmarks)");
const EMBEDDED: Reach = Reach::Never("another way to an address that is not public");

/// IPv4 that is not public: the first address and the bits of its network. A smaller network comes
/// before the one that it is part of.
const NETWORKS: &[(Ipv4Addr, u32, Reach)] = &[
    (Ipv4Addr::UNSPECIFIED, 8, UNSPECIFIED),
    (Ipv4Addr::new(10, 0, 0, 0), 8, PRIVATE),
    // Alibaba Cloud's metadata.
    (Ipv4Addr::new(100, 100, 100, 200), 32, METADATA),
    (Ipv4Addr::new(100, 64, 0, 0), 10, SHARED),
    (Ipv4Addr::new(127, 0, 0, 0), 8, LOOPBACK),
    // Azure's host, on every virtual machine.
    (Ipv4Addr::new(168, 63, 129, 16), 32, METADATA),
    // 169.254.169.254 among them.
    (Ipv4Addr::new(169, 254, 0, 0), 16, LINK),
    (Ipv4Addr::new(172, 16, 0, 0), 12, PRIVATE),
    // Oracle's metadata, 192.0.0.192, among them.
    (Ipv4Addr::new(192, 0, 0, 0), 24, RESERVED),
    (Ipv4Addr::new(192, 0, 2, 0), 24, RESERVED),
    // What remains of relays to 6to4.
    (Ipv4Addr::new(192, 88, 99, 0), 24, RESERVED),
    (Ipv4Addr::new(192, 168, 0, 0), 16, PRIVATE),
    (Ipv4Addr::new(198, 18, 0, 0), 15, RESERVED),
    (Ipv4Addr::new(198, 51, 100, 0), 24, RESERVED),
    (Ipv4Addr::new(203, 0, 113, 0), 24, RESERVED),
    (Ipv4Addr::new(224, 0, 0, 0), 4, GROUP),
    (Ipv4Addr::BROADCAST, 32, GROUP),
    (Ipv4Addr::new(240, 0, 0, 0), 4, RESERVED),
];

/// Who may reach `address`. An IPv6 address that stands for one of IPv4 is judged as that one.
#[must_use]
pub fn reach(address: IpAddr) -> Reach {
    match address.to_canonical() {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    let is_in = |first: Ipv4Addr, bits: u32| (address.to_bits() ^ first.to_bits()).leading_zeros() >= bits;
    NETWORKS.iter().find(|(first, bits, _)| is_in(*first, *bits)).map_or(Reach::Public, |network| network.2)
}

/// A list of what is public; anything else is not.
fn reach_v6(address: Ipv6Addr) -> Reach {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let embeds = |high: u16, low: u16| match reach_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
    {
        Reach::Public => Reach::Public,
        Reach::Private(_) | Reach::Never(_) => EMBEDDED,
    };
    match (a, b) {
        _ if address.is_unspecified() => UNSPECIFIED,
        _ if address.is_loopback() => LOOPBACK,
        // NAT64: the last 32 bits are an address of IPv4. Other networks put it elsewhere.
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => embeds(g, h),
        // Metadata of AWS, fd00:ec2::254, and of Google Cloud, fd20:ce::254; their other services, too.
        (0xfd00, 0x0ec2) | (0xfd20, 0x00ce) => METADATA,
        (0xfc00..=0xfdff, _) => PRIVATE,
        (0xfe80..=0xfebf, _) => LINK,
        (0xff00..=0xffff, _) => GROUP,
        // 6to4: the address of IPv4 follows.
        (0x2002, b) => embeds(b, c),
        // Teredo, benchmarks, identifiers that are no places.
        (0x2001, 0..=0x01ff | 0x0db8) | (0x3fff, 0..=0x0fff) => RESERVED,
        (0x2000..=0x3fff, _) => Reach::Public,
        _ => RESERVED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind of each address, in one word.
    fn kinds<const N: usize>(addresses: [&str; N]) -> [&'static str; N] {
        addresses.map(|address| match reach(address.parse().unwrap_or_else(|_| panic!("{address}"))) {
            Reach::Public => "public",
            Reach::Private(_) => "private",
            Reach::Never(_) => "never",
        })
    }

    #[test]
    fn the_networks_of_ipv4_end_where_the_registry_says() {
        let public = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "151.101.0.223",
        ];
        assert_eq!(kinds(public), ["public"; 27]);
        let private = [
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.0",
            "192.168.255.255",
        ];
        assert_eq!(kinds(private), ["private"; 10]);
        let never = [
            "0.0.0.0",
            "0.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.170.2",
            "169.254.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.254",
            "255.255.255.255",
        ];
        assert_eq!(kinds(never), ["never"; 20]);
    }

    #[test]
    fn ipv6_is_public_where_it_is_said_so_and_nowhere_else() {
        let public = [
            "2606:4700::1111",
            "2a04:4e42::223",
            "2001:200::",
            "2001:db7:ffff::",
            "2001:db9::",
            "3fff:1000::",
        ];
        assert_eq!(kinds(public), ["public"; 6]);
        assert_eq!(kinds(["::1", "fc00::", "fd00::1", "fdff:ffff::1"]), ["private"; 4]);
        let never = [
            "::",
            "::2",
            "::7f00:1",
            "100::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:1ff:ffff::",
            "2001:db8::1",
            "3fff::1",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "64:ff9b:1::808:808",
        ];
        assert_eq!(kinds(never), ["never"; 20]);
    }

    #[test]
    fn an_address_of_ipv4_within_one_of_ipv6_is_found() {
        // Mapped ones are what the machine would connect to.
        assert_eq!(
            kinds(["::ffff:1.1.1.1", "::ffff:10.0.0.1", "::ffff:127.0.0.1"]),
            ["public", "private", "private"]
        );
        assert_eq!(kinds(["::ffff:169.254.169.254", "::ffff:0.0.0.0"]), ["never"; 2]);
        // NAT64 and 6to4, of 8.8.8.8 and of 127.0.0.1, 10.0.0.1, 169.254.169.254.
        assert_eq!(kinds(["64:ff9b::808:808", "2002:808:808::1"]), ["public"; 2]);
        assert_eq!(kinds(["64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe"]), ["never"; 3]);
        assert_eq!(kinds(["2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::1"]), ["never"; 3]);
    }
}
