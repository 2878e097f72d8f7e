//! A blob that is stored again, over one that was damaged meanwhile.

use millrace_queue::testing::{Fault, S3Proxy, S3Server};
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::paths;

use super::{LARGE, content, run, wrong_contents};

/// Of each damage that a store may do, of the right length or not, at the end or in between.
async fn what_is_stored_again_is_whole(objects: &Objects) {
    for length in [1, 1000, LARGE] {
        let blob = objects.put_blob(&run(), content(length)).await.expect("stored");
        let path = paths::blob(&run(), &blob.sha256);
        let mut middle = content(length).to_vec();
        middle[length / 2] ^= 1;
        for damaged in wrong_contents(length).into_iter().chain([middle.into()]) {
            objects.put(&path, damaged).await.expect("written");
            let read = objects.get_blob(&run(), &blob).await;
            assert!(matches!(read, Err(ObjectError::Corrupt { .. })), "length {length}: {read:?}");
            assert_eq!(objects.put_blob(&run(), content(length)).await.expect("stored again"), blob);
            assert!(
                objects.get_blob(&run(), &blob).await.expect("read") == content(length),
                "length {length}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_blob_is_whole_once_it_is_stored_again() {
    what_is_stored_again_is_whole(&Objects::memory()).await;
    let folder = tempfile::tempdir().expect("a folder");
    what_is_stored_again_is_whole(&Objects::open(folder.path().to_str().expect("a path")).expect("opened"))
        .await;
    what_is_stored_again_is_whole(&S3Server::start().await.objects("damaged")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_large_blob_that_is_whole_is_not_written_again() {
    let server = S3Server::start().await;
    let proxy = S3Proxy::start(server.endpoint(), |_| Fault::Pass).await;
    let objects = server.objects_at(proxy.endpoint(), "again");
    for length in [1000, LARGE] {
        let writes = || proxy.seen().iter().filter(|request| request.method == "PUT").count();
        let before = writes();
        objects.put_blob(&run(), content(length)).await.expect("stored");
        objects.put_blob(&run(), content(length)).await.expect("stored again");
        let expected = if length == LARGE { 1 } else { 2 };
        assert_eq!(writes() - before, expected, "length {length}");
    }
    // A small one is not asked for first: that would be a second request.
    let small = content(1000);
    let of_small = proxy
        .seen()
        .into_iter()
        .filter(|request| request.target.contains(&millrace_schemas::BlobRef::of(&small).sha256.to_string()));
    assert!(of_small.into_iter().all(|request| request.method == "PUT"));
}
