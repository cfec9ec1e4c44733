//! Who this machine is, unless told otherwise.

/// The first label of the host's name in lower case, as Kopia names hosts.
pub fn default_host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    first_label(&name)
}

pub(super) fn first_label(host: &str) -> String {
    match host.split('.').next().unwrap_or_default() {
        "" => "nohost".to_owned(),
        label => label.to_lowercase(),
    }
}

/// The login name of the user that runs this program.
pub fn default_user_name() -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let by_id = user_of(&passwd, rustix::process::getuid().as_raw());
    let from_environment = || std::env::var("USER").ok().filter(|name| !name.is_empty());
    by_id.or_else(from_environment).unwrap_or_else(|| "nobody".to_owned())
}

/// The name of user `uid` in the text of a `passwd` file.
pub(super) fn user_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id: u32 = fields.nth(1)?.parse().ok()?;
        (id == uid && !name.is_empty()).then(|| name.to_owned())
    })
}
