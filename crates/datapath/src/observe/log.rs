//! The log of a mover in the log of its node-agent, where people look for it after the pod is gone.

use crate::wire::Ending;
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, Client};
use lifeboat_exposer::Operation;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::time::Duration;
use tokio::time::timeout;

/// What frames the log of a pod, on either side of the words.
const RULE: &str = "***************************";

/// So many lines at the most are from a result to the end of the log.
const LAST_LINES: i64 = 16;
/// More than such lines have.
const LAST_BYTES: i64 = 64 << 10;

/// Who asks for a log waits no longer than this for a word of it: a kubelet may take the question and never answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The log could not be passed on, for want of a place to put it.
#[derive(Debug, thiserror::Error)]
#[error("the log of the mover's pod {pod} cannot be passed on: {source}")]
pub struct HandOverError {
    pod: String,
    source: io::Error,
}

/// Copies the log of the mover of `operation` to `out`, framed and in one piece. A log that cannot be had is replaced by
/// a line that says so. The log passes through a file without a name, so memory does not grow with it.
///
/// # Errors
/// If there is no room for it, or `out` fails.
pub async fn hand_over_log(
    client: Client,
    operation: &Operation,
    out: &mut (dyn Write + Send),
) -> Result<(), HandOverError> {
    let failed = |source| HandOverError { pod: operation.name.clone(), source };
    let mut file = tempfile::tempfile().map_err(failed)?;
    let name = format!("{}/{}", operation.name, operation.uid);
    writeln!(file, "{RULE}begin pod logs[{name}]{RULE}").map_err(failed)?;
    if let Err(problem) = fetch(client, operation, &mut file).await {
        writeln!(file, "the log of pod {name} is not to be had: {problem}").map_err(failed)?;
    }
    writeln!(file, "{RULE}end pod logs[{name}]{RULE}").map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    io::copy(&mut file, out).map(drop).map_err(failed)
}

/// What a mover that still runs has come to, if its log says that all has moved; nothing, if nobody says so soon.
///
/// # Errors
/// If the log is not to be had.
pub async fn result_in_log(client: Client, operation: &Operation) -> kube::Result<Option<Ending>> {
    let pods = Api::<Pod>::namespaced(client, &operation.namespace);
    let end = LogParams {
        container: Some(operation.uid.clone()),
        tail_lines: Some(LAST_LINES),
        limit_bytes: Some(LAST_BYTES),
        ..LogParams::default()
    };
    let Ok(lines) = timeout(PATIENCE, pods.logs(&operation.name, &end)).await else { return Ok(None) };
    let lines = lines?;
    Ok(Ending::in_log(operation.kind.direction(), &lines))
}

async fn fetch(client: Client, operation: &Operation, file: &mut File) -> Result<(), String> {
    let pods = Api::<Pod>::namespaced(client, &operation.namespace);
    let own = LogParams { container: Some(operation.uid.clone()), ..LogParams::default() };
    let late = |_| format!("nobody has answered for {PATIENCE:?}");
    let asked = timeout(PATIENCE, pods.log_stream(&operation.name, &own)).await.map_err(late)?;
    let mut log = Box::pin(asked.map_err(|error| error.to_string())?);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = timeout(PATIENCE, log.read(&mut buffer)).await.map_err(late)?;
        let read = read.map_err(|error| error.to_string())?;
        if read == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..read]).map_err(|error| error.to_string())?;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use lifeboat_exposer::Kind;
    use tower::service_fn;

    fn operation() -> Operation {
        Operation {
            kind: Kind::DataUpload,
            namespace: "velero".to_owned(),
            name: "dm-1".to_owned(),
            uid: "u-1".to_owned(),
        }
    }

    async fn handed_over(status: u16, body: &'static str) -> String {
        let service = service_fn(move |request: http::Request<kube::client::Body>| async move {
            assert_eq!(request.uri().path(), "/api/v1/namespaces/velero/pods/dm-1/log");
            assert!(request.uri().query().unwrap().contains("container=u-1"));
            let answer = http::Response::builder().status(status).body(Full::new(body.as_bytes().into()));
            answer.map_err(io::Error::other)
        });
        let mut out = Vec::new();
        hand_over_log(Client::new(service, "velero"), &operation(), &mut out).await.unwrap();
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn the_log_is_framed_as_velero_frames_it() {
        let text = handed_over(200, "first\nsecond\n").await;
        let rule = "*".repeat(27);
        let expected = format!(
            "{rule}begin pod logs[dm-1/u-1]{rule}\nfirst\nsecond\n{rule}end pod logs[dm-1/u-1]{rule}\n"
        );
        assert_eq!(text, expected);
    }

    #[tokio::test]
    async fn the_result_is_read_from_the_end_of_the_log() {
        let service = service_fn(move |request: http::Request<kube::client::Body>| async move {
            let query = request.uri().query().unwrap().to_owned();
            assert!(query.contains("container=u-1") && query.contains("tailLines="), "{query}");
            let body = "moving\nData-Path-Completed {\"snapshotID\":\"s-1\"}\nended\n";
            http::Response::builder().body(Full::new(body.as_bytes().into())).map_err(io::Error::other)
        });
        let ending = result_in_log(Client::new(service, "velero"), &operation()).await.unwrap();
        let Some(Ending::BackedUp(result)) = ending else { unreachable!("{ending:?}") };
        assert_eq!(result.snapshot_id, "s-1");
    }

    #[tokio::test]
    async fn a_log_that_nobody_answers_for_is_not_waited_for() {
        let silent = || {
            let service = service_fn(|_: http::Request<kube::client::Body>| {
                std::future::pending::<io::Result<http::Response<kube::client::Body>>>()
            });
            Client::new(service, "velero")
        };
        let (operation, mut out) = (operation(), Vec::new());
        let handed_over = hand_over_log(silent(), &operation, &mut out);
        let (result, handed_over) = tokio::join!(result_in_log(silent(), &operation), handed_over);
        assert_eq!((result.unwrap(), handed_over.is_ok()), (None, true));
        assert!(String::from_utf8(out).unwrap().contains("nobody has answered for 5s"));
    }

    #[tokio::test]
    async fn a_log_that_is_gone_is_replaced_by_a_line() {
        let text = handed_over(404, r#"{"kind":"Status","status":"Failure","message":"pods \"dm-1\" not found","reason":"NotFound","code":404}"#).await;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].contains("not found"), "{text}");
    }
}
