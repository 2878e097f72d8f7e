//! The proxy in front of an echo server.

use tokio::time::timeout;

use super::*;

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(150);

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.url().trim_start_matches("nats://")).await.unwrap()
}

/// Sends a word and waits for its echo.
async fn said(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"word").await?;
    let mut back = [0; 4];
    stream.read_exact(&mut back).await?;
    assert_eq!(&back, b"word");
    Ok(())
}

#[tokio::test]
async fn what_goes_in_comes_out() {
    let proxy = Proxy::start(vec![echo().await]).await.unwrap();
    let mut stream = connect(&proxy).await;
    timeout(LONG, said(&mut stream)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cut_closes_what_is_open_and_what_comes_until_it_is_over() {
    let proxy = Proxy::start(vec![echo().await]).await.unwrap();
    let mut stream = connect(&proxy).await;
    timeout(LONG, said(&mut stream)).await.unwrap().unwrap();
    proxy.set(Mode::Cut);
    assert_eq!(timeout(LONG, stream.read(&mut [0; 4])).await.unwrap().unwrap_or(0), 0);
    let mut meanwhile = connect(&proxy).await;
    assert!(timeout(LONG, said(&mut meanwhile)).await.unwrap().is_err());
    proxy.set(Mode::Through);
    let mut after = connect(&proxy).await;
    timeout(LONG, said(&mut after)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_black_hole_holds_everything_and_gives_it_back() {
    let proxy = Proxy::start(vec![echo().await]).await.unwrap();
    let mut stream = connect(&proxy).await;
    timeout(LONG, said(&mut stream)).await.unwrap().unwrap();
    proxy.set(Mode::Blackhole);
    stream.write_all(b"word").await.unwrap();
    let mut back = [0; 4];
    assert!(timeout(SHORT, stream.read_exact(&mut back)).await.is_err());
    proxy.set(Mode::Through);
    timeout(LONG, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"word");
}

#[tokio::test]
async fn a_delay_delays_both_ways() {
    let proxy = Proxy::start(vec![echo().await]).await.unwrap();
    let mut stream = connect(&proxy).await;
    proxy.set(Mode::Delay(SHORT));
    let before = Instant::now();
    timeout(LONG, said(&mut stream)).await.unwrap().unwrap();
    assert!(before.elapsed() >= 2 * SHORT, "{:?}", before.elapsed());
}

#[tokio::test]
async fn the_next_server_is_taken_when_one_is_away() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(vec![gone, echo().await]).await.unwrap();
    for _ in 0..3 {
        let mut stream = connect(&proxy).await;
        timeout(LONG, said(&mut stream)).await.unwrap().unwrap();
    }
}
