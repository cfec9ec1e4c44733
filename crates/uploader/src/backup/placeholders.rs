//! Placeholders of a shallow restore: a backup takes over the entries that they hold.

use super::Run;
use super::directory::Part;
use super::files::Child;
use crate::placeholder::{SUFFIX, decode, real_name};
use crate::source::SourceDir;
use crate::{Error, Result};
use lifeboat_kopia::snapshot::DirEntry;
use std::ffi::{CStr, CString};
use std::fs::File;

impl Run<'_> {
    /// Whether a file or directory of this name is a placeholder.
    pub(super) fn is_placeholder(&self, name: &CStr) -> bool {
        self.options.placeholders && real_name(name.to_bytes()).is_some()
    }

    /// What stands in the listing for the placeholder of a directory.
    pub(super) fn directory_of_placeholder(&self, open: &SourceDir, child: &Child) -> Result<Part> {
        let entry = self.entry_of_placeholder(open, &child.name, &child.listed, true)?;
        let mut part = Part::default();
        part.add(&entry)?;
        part.same = child.previous.first().and_then(Option::as_ref) == Some(&part.entries);
        self.progress.directory_done();
        Ok(part)
    }

    /// The entry that the placeholder `name` holds, under the name that it has here: it may have been moved.
    pub(super) fn entry_of_placeholder(
        &self,
        open: &SourceDir,
        name: &CStr,
        listed: &[u8],
        is_dir: bool,
    ) -> Result<DirEntry> {
        let failed =
            |source: std::io::Error| Error::file("take over the placeholder", &open.join(name), source);
        let real = real_name(name.to_bytes()).unwrap_or_default();
        let real = CString::new(real).map_err(|e| failed(e.into()))?;
        if open.stat(&real).is_ok() {
            let reason = "what it stands for is there, too; a restore was interrupted: repeat it, or remove one of them";
            return Err(failed(std::io::Error::other(reason)));
        }
        let (file, _) = match is_dir {
            false => open.open_file(name)?,
            true => open.child(name)?.open_file(SUFFIX).map_err(|e| failed(std::io::Error::other(e)))?,
        };
        let mut entry = decode(File::from(file), is_dir).map_err(failed)?;
        if !self.can_reuse(&entry.object)? {
            let reason = format!("this repository does not have its object {}", entry.object);
            return Err(failed(std::io::Error::other(reason)));
        }
        entry.name = listed.to_vec().into();
        let mut extras = entry.extras.take().filter(|_| self.options.extras).unwrap_or_default();
        extras.raw_name.0 = if listed == real.as_bytes() { Vec::new() } else { real.into_bytes() };
        entry.extras = (!extras.is_empty()).then_some(extras);
        Ok(entry)
    }
}
