use super::*;

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn fault(text: &str) -> RuleError {
    text.parse::<Rule>().expect_err(text)
}

fn rules(entries: &[&str]) -> Rules {
    entries.iter().map(|entry| rule(entry)).collect()
}

#[test]
fn a_rule_is_written_in_one_way_however_it_was_read() {
    for (read, written) in [
        ("pypi.org:443", "pypi.org:443"),
        ("PyPI.org.:443", "pypi.org:443"),
        ("*.PythonHosted.org:80", "*.pythonhosted.org:80"),
        ("mirror:8080", "mirror:8080"),
        ("_dmarc.a-b.example:1", "_dmarc.a-b.example:1"),
        ("1.1.1.1:65535", "1.1.1.1:65535"),
        ("[2606:4700:0::1111]:443", "[2606:4700::1111]:443"),
        ("[::ffff:1.1.1.1]:443", "1.1.1.1:443"),
        ("0x.example:443", "0x.example:443"),
    ] {
        assert_eq!(rule(read).to_string(), written);
        assert_eq!(rule(written), rule(read));
    }
}

#[test]
fn what_is_no_rule_is_refused_with_a_remedy() {
    for text in [
        "pypi.org",
        "pypi.org:",
        "pypi.org:0",
        "pypi.org:65536",
        "pypi.org:+443",
        "pypi.org:4 43",
        "pypi.org:*",
        "[2606:4700::1111]",
        "pypi.org:443/",
    ] {
        assert_eq!(fault(text), RuleError::Port, "{text}");
    }
    let long = format!("{}.org:443", "a".repeat(64));
    let longer = format!("{}org:443", "abc.".repeat(63));
    for text in [
        ":443",
        "",
        ".:443",
        ".org:443",
        "a..org:443",
        "user@pypi.org:443",
        "pypi.org\0:443",
        "pypi.org\r\n:443",
        "https://pypi.org",
        "pypi.org/simple:443",
        "pypi .org:443",
        "-a.org:443",
        "a-.org:443",
        "a..:443",
        "münchen.de:443",
        "a%2eorg:443",
        "a,b.org:443",
        &long,
        &longer,
    ] {
        assert!(matches!(fault(text), RuleError::Name | RuleError::Port | RuleError::Number), "{text}");
    }
    for text in [
        "*:443",
        "*.org:443",
        "*.:443",
        "*.1.1.1.1:443",
        "a.*.org:443",
        "a*.example.org:443",
        "*.*.example.org:443",
        "**.example.org:443",
    ] {
        assert!(matches!(fault(text), RuleError::Wildcard | RuleError::Name), "{text}: {}", fault(text));
    }
}

#[test]
fn an_address_is_written_in_its_usual_form_and_is_public() {
    for text in [
        "127.1:80",
        "2130706433:80",
        "0x7f000001:80",
        "0x7f.1:80",
        "0177.0.0.1:80",
        "1.1.1.01:80",
        "1.1.1.256:80",
        "1.2.3:80",
        "0x:80",
        "2606:4700::1111:443",
        "[1.1.1.1]:443",
        "[fe80::1%eth0]:443",
        "[::1:443",
    ] {
        assert_eq!(fault(text), RuleError::Number, "{text}");
    }
    for text in [
        "127.0.0.1:80",
        "10.1.2.3:443",
        "169.254.169.254:80",
        "[::1]:80",
        "[fd00:ec2::254]:80",
        "[::ffff:10.0.0.1]:80",
        "[64:ff9b::a00:1]:80",
        "0.0.0.0:80",
        "100.64.0.1.:80",
    ] {
        assert!(matches!(fault(text), RuleError::NotPublic(_)), "{text}: {}", fault(text));
    }
}

#[test]
fn a_wildcard_has_the_names_below_it_and_not_its_own() {
    let list = rules(&["pypi.org:443", "*.example.org:443", "1.1.1.1:53", "[2606:4700::1111]:443"]);
    let allowed = |text: &str| Target::read(text, Some(80)).is_ok_and(|target| list.allow(&target));
    for text in [
        "pypi.org:443",
        "PYPI.ORG.:443",
        "a.example.org:443",
        "a.b.example.org:443",
        "1.1.1.1:53",
        "[2606:4700:0:0::1111]:443",
        "[::ffff:1.1.1.1]:53",
    ] {
        assert!(allowed(text), "{text}");
    }
    for text in [
        "pypi.org",
        "pypi.org:80",
        "a.pypi.org:443",
        "example.org:443",
        ".example.org:443",
        "badexample.org:443",
        "a.example.org.evil.net:443",
        "*.example.org:443",
        "user@pypi.org:443",
        "pypi.org@evil.net:443",
        "pypi.org:443@evil.net:443",
        "1.1.1.1:443",
        "1.1.1.2:53",
        "pypi.org:443:443",
        "[pypi.org]:443",
        "pypi.org#:443",
    ] {
        assert!(!allowed(text), "{text}");
    }
    assert!(!Rules::default().allow(&Target::read("pypi.org:443", None).unwrap()));
    assert_eq!(Target::read("pypi.org", None), Err(RuleError::Port));
    assert_eq!(Target::read("pypi.org:", Some(80)), Err(RuleError::Port));
    assert_eq!(Target::read("pypi.org", Some(80)).unwrap().to_string(), "pypi.org:80");
    assert!(matches!(Target::read("127.0.0.1", Some(80)), Err(RuleError::NotPublic(_))));
}

#[test]
fn a_run_gets_no_more_than_its_operator_allows() {
    let operator = rules(&["pypi.org:443", "*.example.org:443", "1.1.1.1:443"]);
    for text in
        ["pypi.org:443", "a.example.org:443", "*.example.org:443", "*.b.example.org:443", "1.1.1.1:443"]
    {
        assert_eq!(rules(&["PYPI.org:443", text]).first_beyond(&operator), None, "{text}");
    }
    for text in [
        "pypi.org:80",
        "*.pypi.org:443",
        "example.org:443",
        "*.xexample.org:443",
        "*.example.net:443",
        "1.1.1.1:80",
    ] {
        let asked = rules(&["pypi.org:443", text]);
        assert_eq!(asked.first_beyond(&operator), Some(&rule(text)));
    }
    assert_eq!(Rules::default().first_beyond(&Rules::default()), None);
    assert_eq!(operator.first_beyond(&Rules::default()), Some(&rule("pypi.org:443")));
    let (entry, error) = Rules::read(&["pypi.org:443".to_owned(), "pypi.org".to_owned()]).unwrap_err();
    assert_eq!((entry.as_str(), error), ("pypi.org", RuleError::Port));
}

#[test]
fn an_operator_permits_private_addresses_and_no_metadata() {
    for (text, written) in [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("[::1]:80", "[::1]:80"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ("[fd12::1]:443", "[fd12::1]:443"),
        ("100.64.1.1:443", "100.64.1.1:443"),
    ] {
        assert_eq!(text.parse::<Private>().unwrap().0.to_string(), written);
    }
    for text in [
        "169.254.169.254:80",
        "[fd00:ec2::254]:80",
        "100.100.100.200:80",
        "0.0.0.0:80",
        "1.1.1.1:443",
        "10.0.0.1",
        "10.0.0.1:0",
        "mirror:80",
        "10.0.0.0/8:80",
        "[fe80::1]:80",
        "224.0.0.1:80",
        "[64:ff9b::a00:1]:80",
    ] {
        assert_eq!(text.parse::<Private>(), Err(RuleError::NotPrivate), "{text}");
    }
}
