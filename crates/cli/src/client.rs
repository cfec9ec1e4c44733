//! The way to the API server, for every program here.

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::{Client, Config};
use std::time::Duration;

/// As whom it speaks: the API server notes who wrote what by the word before the slash.
const AGENT: &str = concat!("lifeboat/", env!("CARGO_PKG_VERSION"));

/// After so long without a word a connection is taken for dead; the API server ends every watch before that.
const LONGEST_SILENCE: Duration = Duration::from_secs(295);

/// A client of the cluster that this program is in or that the user has chosen.
///
/// # Errors
/// If there is none, or what is known of it does not make sense.
pub async fn client() -> Result<Client, kube::Error> {
    let config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    Client::try_from(introduced(config))
}

fn introduced(mut config: Config) -> Config {
    config.read_timeout = Some(LONGEST_SILENCE);
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    config
}
