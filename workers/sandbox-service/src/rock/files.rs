//! Files, as text and as uploads. A path that does not begin with `/` begins at the home folder.

use axum::extract::{Multipart, State};
use serde_json::json;

use super::Answer;
use super::envelope::{Asked, Asker, done};
use super::requests::{ReadFile, WriteFile};
use crate::hosted::Counts;
use crate::service::{Service, ServiceError, invalid};

/// Bytes of a file that is read as text.
const READ_BYTES: u64 = 64 * 1024 * 1024;

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/home/user/{path}") }
}

pub(super) async fn read(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(asked): Asked<ReadFile>,
) -> Answer {
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    Counts::add(&sandbox.counts.files);
    let bytes = sandbox.live.read(&absolute(&asked.path), READ_BYTES).await?;
    let content = text(bytes, asked.encoding.as_deref(), asked.errors.as_deref())?;
    Ok(done(&json!({ "content": content })))
}

/// Text in one of the encodings and ways with errors that Python's names stand for.
fn text(bytes: Vec<u8>, encoding: Option<&str>, errors: Option<&str>) -> Result<String, ServiceError> {
    let encoding = encoding.unwrap_or("utf-8").to_ascii_lowercase();
    match encoding.as_str() {
        "utf-8" | "utf8" | "ascii" => {}
        "latin-1" | "latin1" | "iso-8859-1" => return Ok(bytes.into_iter().map(char::from).collect()),
        _ => return Err(invalid("encoding", encoding, "utf-8, ascii or latin-1")),
    }
    match errors.unwrap_or("strict") {
        "strict" => String::from_utf8(bytes).map_err(|error| {
            let remedy = "the file is no UTF-8; set errors=replace, or encoding=latin-1";
            invalid("path", format!("byte {}", error.utf8_error().valid_up_to()), remedy)
        }),
        "replace" => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        "ignore" => Ok(bytes.utf8_chunks().map(|chunk| chunk.valid()).collect()),
        "backslashreplace" => Ok(bytes
            .utf8_chunks()
            .map(|chunk| {
                let escaped: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
                chunk.valid().to_owned() + &escaped
            })
            .collect()),
        other => Err(invalid("errors", other, "strict, replace, ignore or backslashreplace")),
    }
}

pub(super) async fn write(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(asked): Asked<WriteFile>,
) -> Answer {
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    Counts::add(&sandbox.counts.files);
    sandbox.live.write(&absolute(&asked.path), asked.content.as_bytes()).await?;
    Ok(done(&json!({ "success": true, "message": "" })))
}

pub(super) async fn upload(
    State(service): State<Service>,
    Asker(owner): Asker,
    mut form: Multipart,
) -> Answer {
    let wrong = |error: axum::extract::multipart::MultipartError| {
        invalid("form", error.body_text(), "send multipart/form-data with file, target_path and sandbox_id")
    };
    let (mut file, mut path, mut id) = (None, None, None);
    while let Some(field) = form.next_field().await.map_err(wrong)? {
        let name = field.name().unwrap_or_default().to_owned();
        match name.as_str() {
            "file" => {
                file = Some((field.file_name().map(str::to_owned), field.bytes().await.map_err(wrong)?))
            }
            "target_path" => path = Some(field.text().await.map_err(wrong)?),
            "sandbox_id" => id = Some(field.text().await.map_err(wrong)?),
            // As ROCK does with fields that it does not know.
            _ => {}
        }
    }
    let missing = |field| move || invalid(field, "", "the form needs it");
    let (name, bytes) = file.ok_or_else(missing("file"))?;
    let path = path.ok_or_else(missing("target_path"))?;
    let sandbox = service.use_it(owner, &id.ok_or_else(missing("sandbox_id"))?)?;
    Counts::add(&sandbox.counts.files);
    sandbox.live.write(&absolute(&path), &bytes).await?;
    Ok(done(&json!({ "success": true, "message": "", "file_name": name.unwrap_or_default() })))
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn text_is_decoded_as_python_would() {
        let bytes = || b"a\xffb".to_vec();
        assert_eq!(text(b"\xc3\xa9".to_vec(), None, None).unwrap(), "é");
        assert_eq!(text(bytes(), None, Some("replace")).unwrap(), "a\u{fffd}b");
        assert_eq!(text(bytes(), Some("UTF-8"), Some("ignore")).unwrap(), "ab");
        assert_eq!(text(bytes(), None, Some("backslashreplace")).unwrap(), "a\\xffb");
        assert_eq!(text(bytes(), Some("latin-1"), None).unwrap(), "aÿb");
        let wrong = text(bytes(), None, None).unwrap_err().to_string();
        assert!(wrong.contains("byte 1") && wrong.contains("errors=replace"), "{wrong}");
        assert!(text(bytes(), Some("utf-16"), None).is_err() && text(bytes(), None, Some("x")).is_err());
    }
}
