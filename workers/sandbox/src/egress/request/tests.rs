use super::*;

async fn asked(text: &str) -> Result<Asked, Refusal> {
    read(&mut text.as_bytes()).await
}

async fn status(text: &str) -> u16 {
    asked(text).await.map_or_else(|refusal| refusal.status, |_| 200)
}

#[tokio::test]
async fn a_tunnel_is_asked_for_by_host_and_port() {
    let found = asked("CONNECT PyPI.org.:443 HTTP/1.1\r\nHost: other\r\n\r\nhello").await.unwrap();
    assert_eq!(found.target.to_string(), "pypi.org:443");
    assert_eq!(found.flow, Flow { to_client: CONNECTED, to_server: b"hello".to_vec(), rest: None });
    // What comes byte by byte is the same.
    let (mut there, mut here) = tokio::io::duplex(1);
    let write = async move {
        tokio::io::AsyncWriteExt::write_all(&mut there, b"CONNECT a.b:1 HTTP/1.0\r\n\r\n").await
    };
    let (found, _) = tokio::join!(read(&mut here), write);
    assert_eq!(found.unwrap().target.to_string(), "a.b:1");
}

#[tokio::test]
async fn a_plain_request_becomes_one_to_the_host() {
    let text = "POST http://User.Example:8080/a?b#c HTTP/1.1\r\nHost: evil.example\r\nAccept: */*\r\n\
        Proxy-Authorization: secret\r\nConnection: keep-alive, X-Own, Content-Length\r\nX-Own: 1\r\nUpgrade: h2c\r\n\
        content-length: 4\r\n\r\nbodyGET http://other.example/ HTTP/1.1\r\n\r\n";
    let found = asked(text).await.unwrap();
    assert_eq!(found.target.to_string(), "user.example:8080");
    let head = "POST /a?b HTTP/1.1\r\nHost: user.example:8080\r\nConnection: close\r\nContent-Length: 4\r\nAccept: */*\r\n\r\nbody";
    // The second request is for another host, and goes to none.
    assert_eq!(String::from_utf8(found.flow.to_server).unwrap(), head);
    assert_eq!((found.flow.to_client, found.flow.rest), (&b""[..], Some(0)));
    let found = asked("GET HTTP://a.example?q HTTP/1.0\r\n\r\nmore").await.unwrap();
    let head = "GET /?q HTTP/1.0\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    assert_eq!(String::from_utf8(found.flow.to_server).unwrap(), head);
    let found =
        asked("PUT http://[2606:4700::1111] HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\nab")
            .await;
    let found = found.unwrap();
    assert_eq!((found.target.port(), found.flow.rest), (80, Some(u64::MAX - 2)));
}

#[tokio::test]
async fn tricks_with_a_target_are_refused() {
    for target in [
        "user@pypi.org:443",
        "pypi.org:0",
        "pypi.org",
        "pypi.org:443@evil.net",
        "[::1]:443",
        "127.0.0.1:443",
        "2130706433:443",
        "[::ffff:127.0.0.1]:443",
        "169.254.169.254:80",
        "pypi.org:443/",
        "https://pypi.org:443",
        "*.pypi.org:443",
        ":443",
        "pypi..org:443",
        "pypi.org..:443",
        "xn--\u{fc}:443",
        "pypi.org:00000000000000443443",
    ] {
        assert_eq!(status(&format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await, 403, "{target}");
    }
    for target in [
        "user:pw@a.example/",
        "a.example:0/",
        "a.example:/",
        "[::1]/",
        "0x7f.1/",
        "a.example:80:80/",
        "",
        "/etc/passwd",
    ] {
        assert_eq!(status(&format!("GET http://{target} HTTP/1.1\r\n\r\n")).await, 403, "{target}");
    }
    let refused = asked("CONNECT user@pypi.org:443 HTTP/1.1\r\n\r\n").await.unwrap_err();
    assert!(
        refused.reason.starts_with("\"user@pypi.org:443\" cannot be reached")
            && refused.reason.contains("such as"),
        "{refused:?}"
    );
    // Each is one line for the program, whatever it sent.
    let refused =
        asked(&format!("CONNECT {} HTTP/1.1\r\n\r\n", "\u{1f4a9}".repeat(2_000))).await.unwrap_err();
    assert!(
        refused.reason.len() < 600 && refused.reason.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_is_no_request_for_a_proxy_is_refused() {
    for text in [
        "",
        "CONNECT pypi.org:443",
        "CONNECT pypi.org:443 HTTP/1.1\r\n",
        "CONNECT pypi.org\0:443 HTTP/1.1\r\n\r\n",
        "CONNECT pypi.org:443\r\n\r\n",
        "CONNECT  HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02\0\x01\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET https://pypi.org/ HTTP/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "POST http://a.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST http://a.example/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        "POST http://a.example/ HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
        "GET http://a.example/ HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
        "GET http://a.example/ HTTP/1.1\r\nX : a\r\n\r\n",
        "GET http://a.example/\r\nHost: b HTTP/1.1\r\n\r\n",
    ] {
        assert_eq!(status(text).await, 400, "{text:?}");
    }
    let chunked =
        "POST http://a.example/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n";
    assert_eq!(status(chunked).await, 411);
    let (long, many) = ("a".repeat(MAX_HEAD), "X: y\r\n".repeat(MAX_HEADERS + 1));
    assert_eq!(status(&format!("CONNECT {long}:443 HTTP/1.1\r\n\r\n")).await, 431);
    assert_eq!(status(&format!("CONNECT a.b:443 HTTP/1.1\r\nX: {long}\r\n\r\n")).await, 431);
    assert_eq!(status(&format!("CONNECT a.b:443 HTTP/1.1\r\n{many}\r\n")).await, 431);
}
