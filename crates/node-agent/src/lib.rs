//! The node-agent: one state machine for DataUpload, DataDownload, PodVolumeBackup and PodVolumeRestore.
//!
//! So far the machine itself: [`machine::decide`] looks at one operation and says what to do next. It waits for nothing,
//! remembers nothing and touches nothing, so an agent may end at any moment and another may go on.

#![forbid(unsafe_code)]

pub mod machine;
