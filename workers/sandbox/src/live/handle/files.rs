//! Files of a long-lived sandbox. Paths are absolute, as seen from within.

use super::LiveSandbox;
use crate::live::spec::LiveError;
use crate::live::wire::{Entry, Fault, FileAnswer, FileAsk, PIECE_BYTES};

impl LiveSandbox {
    /// Reads a file.
    ///
    /// # Errors
    /// There is none, it is no regular file or has more than `most` bytes, or the sandbox has ended.
    pub async fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, LiveError> {
        let mut all = Vec::new();
        loop {
            let offset = all.len() as u64;
            let ask = FileAsk::Read { path: path.to_owned(), offset, most: PIECE_BYTES as u64 };
            let FileAnswer::Bytes(piece) = self.body.link.file(ask).await? else {
                return Err(LiveError::Ended);
            };
            let is_last = piece.len() < PIECE_BYTES;
            all.extend(piece);
            if all.len() as u64 > most {
                let (what, reason) = ("read".to_owned(), format!("it has more than {most} bytes"));
                return Err(Fault { what, path: path.to_owned(), reason, missing: false }.into());
            }
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Writes a file in place of what is there. Makes the folders above it.
    ///
    /// # Errors
    /// It cannot be written, or the sandbox has ended.
    pub async fn write(&self, path: &str, bytes: &[u8]) -> Result<(), LiveError> {
        let mut pieces = bytes.chunks(PIECE_BYTES);
        let first = pieces.next().unwrap_or_default();
        for (piece, append) in std::iter::once((first, false)).chain(pieces.map(|piece| (piece, true))) {
            self.do_file(FileAsk::Write { path: path.to_owned(), bytes: piece.to_vec(), append }).await?;
        }
        Ok(())
    }

    /// Removes a file, or a folder with all that is in it.
    ///
    /// # Errors
    /// There is none, or it cannot be removed, or the sandbox has ended.
    pub async fn remove(&self, path: &str) -> Result<(), LiveError> {
        self.do_file(FileAsk::Remove { path: path.to_owned() }).await
    }

    /// Makes a folder, and those above it.
    ///
    /// # Errors
    /// It cannot be made, or the sandbox has ended.
    pub async fn make_folder(&self, path: &str) -> Result<(), LiveError> {
        self.do_file(FileAsk::MakeFolder { path: path.to_owned() }).await
    }

    /// Moves something. Makes the folders above its new place.
    ///
    /// # Errors
    /// It cannot be moved, or the sandbox has ended.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), LiveError> {
        self.do_file(FileAsk::Move { from: from.to_owned(), to: to.to_owned() }).await
    }

    /// What is in a folder, by name.
    ///
    /// # Errors
    /// It is no folder, or the sandbox has ended.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, LiveError> {
        match self.body.link.file(FileAsk::List { path: path.to_owned() }).await? {
            FileAnswer::Entries(entries) => Ok(entries),
            FileAnswer::Done | FileAnswer::Bytes(_) => Err(LiveError::Ended),
        }
    }

    /// What a path is. `None`: there is nothing.
    ///
    /// # Errors
    /// It cannot be said, or the sandbox has ended.
    pub async fn look(&self, path: &str) -> Result<Option<Entry>, LiveError> {
        match self.body.link.file(FileAsk::Look { path: path.to_owned() }).await {
            Ok(FileAnswer::Entries(entries)) => Ok(entries.into_iter().next()),
            Ok(FileAnswer::Done | FileAnswer::Bytes(_)) => Err(LiveError::Ended),
            Err(LiveError::File(fault)) if fault.missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn do_file(&self, ask: FileAsk) -> Result<(), LiveError> {
        self.body.link.file(ask).await.map(|_| ())
    }
}
