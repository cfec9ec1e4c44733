//! The API as a client sees it: paths, parameters, and answers.

use super::api::{Api, Place, Refused, Selector, shown};
use super::world::LOG;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The way of one client to the API, which can be cut: what is under way is answered, and nothing after it.
#[derive(Clone)]
pub struct Line {
    name: Arc<str>,
    api: Arc<Api>,
    cut: Arc<AtomicBool>,
}

impl Line {
    pub fn new(api: &Arc<Api>, name: &str) -> Self {
        Self { name: name.into(), api: Arc::clone(api), cut: Arc::new(AtomicBool::new(false)) }
    }

    pub fn client(&self) -> Client {
        let line = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let line = line.clone();
            async move { line.answer(request).await }
        });
        Client::new(service, "velero")
    }

    /// From here on nothing of this client reaches the API, as if it had been killed.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        self.api.hang_up(&self.name);
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(io::Error::other)?;
        if self.cut.load(Ordering::SeqCst) || self.api.is_down() {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody answers"));
        }
        let accept = head.headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
        let asked = Asked {
            metadata_only: accept.is_some_and(|accept| accept.contains("as=PartialObjectMetadata")),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            ..Asked::parse(head.uri.path(), head.uri.query().unwrap_or_default())
        };
        let verb = asked.verb(&head.method);
        self.api.count(&format!("{verb} {}", asked.kind));
        if matches!(verb, "list" | "watch") {
            self.api.note_selection(&asked.kind, &asked.selector);
        }
        Ok(self.respond(&head.method, asked))
    }

    fn respond(&self, method: &Method, asked: Asked) -> Answer {
        let place = Place::new(&asked.kind, &asked.selector.namespace, &asked.name);
        if *method == Method::PATCH {
            self.api.about_to_patch(&place, &asked.body);
        }
        let written = |result: Result<Arc<Value>, Refused>| match result {
            Ok(object) => answer(StatusCode::OK, &object),
            Err(refused) => refusal(refused, &place),
        };
        match *method {
            Method::GET if asked.log => {
                let pod = self.api.get(&place);
                let log = pod.and_then(|pod| Some(pod["metadata"]["annotations"][LOG].as_str()?.to_owned()));
                Response::new(Full::from(log.unwrap_or_default()).boxed_unsync())
            }
            Method::GET if asked.name.is_empty() && asked.watch => self.watch(asked),
            Method::GET if asked.name.is_empty() => {
                let (all, version) = self.api.list(&asked.kind, &asked.selector);
                let items: Vec<Value> = all.iter().map(|it| shown(it, asked.metadata_only)).collect();
                let metadata = json!({ "resourceVersion": version.to_string() });
                answer(StatusCode::OK, &json!({ "metadata": metadata, "items": items }))
            }
            Method::GET => written(self.api.get(&place).ok_or(Refused::NotFound)),
            Method::POST => {
                let mut object = asked.body;
                if !asked.selector.namespace.is_empty() {
                    object["metadata"]["namespace"] = asked.selector.namespace.as_str().into();
                }
                written(self.api.create(&self.name, &asked.kind, object))
            }
            Method::PATCH if self.api.is_forbidden(&place) => refusal(Refused::Forbidden, &place),
            Method::PATCH => written(self.api.patch(&self.name, &place, &asked.body)),
            Method::DELETE if self.api.changes_before_delete(&asked.body) => {
                refusal(Refused::Conflict, &place)
            }
            Method::DELETE => match self.api.delete(&self.name, &place, &asked.body) {
                Ok(()) => answer(StatusCode::OK, &status(StatusCode::OK, "Success", "")),
                Err(refused) => refusal(refused, &place),
            },
            _ => answer(StatusCode::METHOD_NOT_ALLOWED, &Value::Null),
        }
    }

    fn watch(&self, asked: Asked) -> Answer {
        let Asked { kind, selector, metadata_only, since, .. } = asked;
        let Some(lines) = self.api.watch(&self.name, &kind, selector, metadata_only, since) else {
            // That it is too old is said by the watch, not instead of it.
            let expired = status(StatusCode::GONE, "Expired", "the version is too old");
            return answer(StatusCode::OK, &json!({ "type": "ERROR", "object": expired }));
        };
        let lines = futures::stream::unfold(lines, |mut lines| async { Some((lines.recv().await?, lines)) });
        let frames = lines.map(|line| Ok(Frame::data(Bytes::from_owner(Text(line)))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

/// A line that many share.
struct Text(Arc<str>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// What a request asks for.
#[derive(Default)]
struct Asked {
    kind: String,
    name: String,
    selector: Selector,
    log: bool,
    watch: bool,
    since: u64,
    metadata_only: bool,
    body: Value,
}

impl Asked {
    fn parse(path: &str, query: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => ("", &[][..]),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let mut asked = Self {
            kind: format!("{group}/{}", rest.first().copied().unwrap_or_default()),
            name: rest.get(1).copied().unwrap_or_default().to_owned(),
            log: rest.get(2) == Some(&"log"),
            ..Self::default()
        };
        asked.selector.namespace = namespace.to_owned();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = decoded(value);
            let terms = || value.split(',').filter(|term| !term.is_empty());
            match key {
                "watch" => asked.watch = value == "true",
                "resourceVersion" => asked.since = value.parse().unwrap_or(0),
                "labelSelector" => {
                    asked.selector.labels = terms()
                        .map(|term| match term.split_once('=') {
                            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                            None => (term.to_owned(), None),
                        })
                        .collect();
                }
                "fieldSelector" => {
                    let fields = terms().filter_map(|term| term.split_once('='));
                    asked.selector.fields = fields
                        .map(|(path, value)| (format!("/{}", path.replace('.', "/")), value.to_owned()))
                        .collect();
                }
                _ => {}
            }
        }
        asked
    }

    fn verb(&self, method: &Method) -> &'static str {
        match *method {
            Method::GET if self.watch => "watch",
            Method::GET if self.name.is_empty() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "other",
        }
    }
}

/// A value of a query, which is encoded as that of a form is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                let digits = std::str::from_utf8(&digits).unwrap_or("00");
                u8::from_str_radix(digits, 16).unwrap_or(b'?')
            }
            other => other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn answer(code: StatusCode, body: &Value) -> Answer {
    let mut response = Response::new(Full::from(body.to_string()).boxed_unsync());
    *response.status_mut() = code;
    response
}

fn refusal(refused: Refused, place: &Place) -> Answer {
    let (code, reason) = match refused {
        Refused::NotFound => (StatusCode::NOT_FOUND, "NotFound"),
        Refused::Conflict => (StatusCode::CONFLICT, "Conflict"),
        Refused::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
    };
    answer(code, &status(code, reason, &format!("{place:?}")))
}

fn status(code: StatusCode, reason: &str, message: &str) -> Value {
    let outcome = if code == StatusCode::OK { "Success" } else { "Failure" };
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": outcome,
        "reason": reason, "message": message, "code": code.as_u16(),
    })
}
