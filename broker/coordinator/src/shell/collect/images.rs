//! What the names of images refer to: a manifest, and the layers in it.

use millrace_queue::{Broker, BrokerError, Listed};
use millrace_schemas::blob::paths::{self, ObjectKind};
use millrace_schemas::image::{ImageError, ImageManifest, ImagePointer};

use super::{ObjectUse, Reference, References};

/// Adds these references. Where a name or a manifest cannot be read, what it needs is unknown: then
/// all manifests and layers stay.
pub(super) async fn refer(
    broker: &Broker,
    listed: &[Listed],
    references: &mut References,
    wrong: &mut Vec<String>,
) -> Result<(), BrokerError> {
    let mut all_are_known = true;
    for object in listed {
        let Some(ObjectKind::ImageName(name)) = paths::parse(&object.path) else { continue };
        let by = format!("the image {name}");
        // It may have been removed since.
        let Some(content) = broker.objects().get(&object.path).await? else { continue };
        let known = match ImagePointer::from_json(&content) {
            Ok(pointer) => image(broker, &pointer, &by, references).await?,
            Err(error) => Err(error),
        };
        if let Err(error) = known {
            wrong.push(format!("{by} cannot be read: {error}"));
            all_are_known = false;
        }
    }
    if !all_are_known {
        for object in listed {
            let of = match paths::parse(&object.path) {
                Some(ObjectKind::Layer(_)) => ObjectUse::Layer,
                Some(ObjectKind::ImageManifest(_)) => ObjectUse::Image,
                _ => continue,
            };
            let kept = Reference { of, blob: None, missed_by: None };
            references.entry(object.path.clone()).or_insert(kept);
        }
    }
    Ok(())
}

async fn image(
    broker: &Broker,
    pointer: &ImagePointer,
    by: &str,
    references: &mut References,
) -> Result<Result<(), ImageError>, BrokerError> {
    let path = paths::image_manifest(&pointer.manifest);
    let content = broker.objects().get(&path).await?;
    let missed_by = Some(by.to_owned());
    references.insert(path, Reference { of: ObjectUse::Image, blob: None, missed_by: missed_by.clone() });
    // One that is missing is reported as such.
    let Some(content) = content else { return Ok(Ok(())) };
    let manifest = match ImageManifest::from_json(pointer.manifest, &content) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(Err(error)),
    };
    for layer in manifest.layers {
        let of = ObjectUse::Layer;
        let reference = Reference { of, blob: Some(layer), missed_by: missed_by.clone() };
        references.insert(paths::layer(&layer.sha256), reference);
    }
    Ok(Ok(()))
}
