//! Who asks: static keys, or whatever the AWS tool chain finds, renewed before it expires.

use crate::ErrorKind;
use crate::rest::http::{Trouble, chain};
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use object_store::aws::AwsCredential;
use parking_lot::Mutex;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Renewed this long before it expires, so that no request in flight sees the end.
const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// Where credentials come from.
#[derive(Clone, Default)]
pub enum S3Credentials {
    /// The chain of the AWS tools: environment, profile, web identity, container (ECS, EKS), instance (IMDS).
    #[default]
    Environment,
    /// A profile of the shared files, role assumption included. It wins over anything in the environment.
    Profile {
        /// Name of the profile; `None` is `AWS_PROFILE` or `default`.
        name: Option<String>,
        /// One file used as both credentials and config file, as Velero does; `None` is the usual places.
        file: Option<PathBuf>,
    },
    /// Fixed keys.
    Static {
        /// Access key id.
        key_id: String,
        /// Secret access key.
        secret: String,
        /// Session token of temporary keys.
        token: Option<String>,
    },
    /// A role, assumed with other credentials.
    Role(Box<AssumeRole>),
    /// Nobody: requests are not signed.
    Anonymous,
}

/// A role to assume.
#[derive(Clone)]
pub struct AssumeRole {
    /// ARN of the role.
    pub role: String,
    /// What its session is called; `None` is `lifeboat`.
    pub session: Option<String>,
    /// How long a session lasts; `None` is the service's default.
    pub duration: Option<Duration>,
    /// Address of the token service; `None` is Amazon's.
    pub endpoint: Option<String>,
    /// Region of the token service.
    pub region: Option<String>,
    /// With whose rights; not another role.
    pub with: S3Credentials,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            S3Credentials::Environment => f.write_str("Environment"),
            S3Credentials::Profile { name, file } => {
                f.debug_struct("Profile").field("name", name).field("file", file).finish()
            }
            S3Credentials::Static { .. } => f.write_str("Static(…)"),
            S3Credentials::Role(role) => f.debug_tuple("Role").field(&role.role).finish(),
            S3Credentials::Anonymous => f.write_str("Anonymous"),
        }
    }
}

/// Credentials as requests need them.
pub(super) struct CredentialSource {
    provider: Option<SharedCredentialsProvider>,
    /// Whether asking the provider again can give something else.
    renewable: bool,
    cached: Mutex<Option<(Arc<AwsCredential>, Option<SystemTime>)>>,
    /// Held while the provider is asked, so that it is asked once.
    asking: tokio::sync::Mutex<()>,
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialSource").field("renewable", &self.renewable).finish_non_exhaustive()
    }
}

impl CredentialSource {
    /// In a region, whose services are asked where other ones have to be; without one the AWS tool chain is asked for it.
    pub(super) async fn new(credentials: &S3Credentials, region: Option<&str>) -> Self {
        CredentialSource {
            provider: provider(credentials, region).await,
            renewable: !matches!(credentials, S3Credentials::Static { .. } | S3Credentials::Anonymous),
            cached: Mutex::new(None),
            asking: tokio::sync::Mutex::new(()),
        }
    }

    /// The credential to sign with, or `None` to not sign.
    pub(super) async fn current(&self) -> Result<Option<Arc<AwsCredential>>, Trouble> {
        let Some(provider) = &self.provider else { return Ok(None) };
        if let Some(valid) = self.valid() {
            return Ok(Some(valid));
        }
        let _asking = self.asking.lock().await;
        if let Some(valid) = self.valid() {
            return Ok(Some(valid));
        }
        let fresh = provider.provide_credentials().await.map_err(|error| trouble(&error))?;
        let expires = fresh.expiry();
        let credential = Arc::new(checked(&fresh)?);
        *self.cached.lock() = Some((credential.clone(), expires));
        Ok(Some(credential))
    }

    fn valid(&self) -> Option<Arc<AwsCredential>> {
        let cached = self.cached.lock();
        let (credential, expires) = cached.as_ref()?;
        let valid = expires.is_none_or(|expires| SystemTime::now() + RENEW_BEFORE < expires);
        valid.then(|| credential.clone())
    }

    /// Forgets a credential that the store refused. Returns whether another one may be had.
    pub(super) fn discard(&self) -> bool {
        self.renewable && self.cached.lock().take().is_some()
    }
}

/// A credential goes into headers: characters that cannot are refused here.
fn checked(credentials: &Credentials) -> Result<AwsCredential, Trouble> {
    let sendable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let token = credentials.session_token();
    if !sendable(credentials.access_key_id()) || !token.is_none_or(sendable) {
        let detail =
            "the access key id or session token has characters that cannot be part of one".to_owned();
        return Err(Trouble { kind: ErrorKind::Unauthenticated, detail, remedy: None });
    }
    Ok(AwsCredential {
        key_id: credentials.access_key_id().to_owned(),
        secret_key: credentials.secret_access_key().to_owned(),
        token: token.map(ToOwned::to_owned),
    })
}

fn trouble(error: &CredentialsError) -> Trouble {
    let kind = match error {
        CredentialsError::ProviderTimedOut(_) => ErrorKind::Transient,
        _ => ErrorKind::Unauthenticated,
    };
    // Displayed, causes name what failed (a file, a service, an error code); debug output would quote requests.
    let remedy =
        Some("configure keys, a profile or a role, or check that the metadata service can be reached");
    Trouble { kind, detail: format!("no credentials: {}", chain(error)), remedy }
}

async fn provider(credentials: &S3Credentials, region: Option<&str>) -> Option<SharedCredentialsProvider> {
    Some(match credentials {
        S3Credentials::Anonymous => return None,
        S3Credentials::Static { key_id, secret, token } => {
            let fixed = Credentials::new(key_id, secret, token.clone(), None, "configuration");
            SharedCredentialsProvider::new(fixed)
        }
        S3Credentials::Environment => {
            let mut loader = aws_config::defaults(BehaviorVersion::latest());
            if let Some(region) = region {
                loader = loader.region(Region::new(region.to_owned()));
            }
            loader.load().await.credentials_provider()?
        }
        S3Credentials::Profile { name, file } => {
            let config = surroundings(region).await;
            let mut builder = ProfileFileCredentialsProvider::builder().configure(&config);
            if let Some(name) = name {
                builder = builder.profile_name(name);
            }
            if let Some(file) = file {
                let files = EnvConfigFiles::builder()
                    .with_file(EnvConfigFileKind::Credentials, file)
                    .with_file(EnvConfigFileKind::Config, file);
                builder = builder.profile_files(files.build());
            }
            SharedCredentialsProvider::new(builder.build())
        }
        S3Credentials::Role(role) => SharedCredentialsProvider::new(assume(role, region).await?),
    })
}

/// A known region is not asked for: where there is no metadata service that could tell it, the question alone takes a second.
async fn surroundings(region: Option<&str>) -> ProviderConfig {
    match region {
        Some(region) => ProviderConfig::without_region().with_region(Some(Region::new(region.to_owned()))),
        None => ProviderConfig::with_default_region().await,
    }
}

async fn assume(role: &AssumeRole, region: Option<&str>) -> Option<RoleProvider> {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    loader = loader.credentials_provider(Box::pin(provider(&role.with, region)).await?);
    if let Some(endpoint) = &role.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(region) = role.region.as_deref().or(region) {
        loader = loader.region(Region::new(region.to_owned()));
    }
    Some(RoleProvider {
        service: aws_sdk_sts::Client::new(&loader.load().await),
        role: role.role.clone(),
        session: role.session.clone().unwrap_or_else(|| "lifeboat".to_owned()),
        seconds: role.duration.map(|duration| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)),
    })
}

/// Asks a token service for a session of a role. `AssumeRoleProvider` of `aws-config` would do, but insists on an
/// ARN in the answer, which services other than Amazon's leave empty.
#[derive(Debug)]
struct RoleProvider {
    service: aws_sdk_sts::Client,
    role: String,
    session: String,
    seconds: Option<i32>,
}

impl RoleProvider {
    async fn ask(&self) -> Result<Credentials, CredentialsError> {
        let request = self.service.assume_role().role_arn(&self.role).role_session_name(&self.session);
        let answer = request.set_duration_seconds(self.seconds).send().await;
        let answer = answer.map_err(CredentialsError::provider_error)?.credentials;
        let session =
            answer.ok_or_else(|| CredentialsError::provider_error("the answer has no credentials"))?;
        let expires = SystemTime::try_from(session.expiration).map_err(CredentialsError::provider_error)?;
        let token = Some(session.session_token);
        let (key_id, secret) = (session.access_key_id, session.secret_access_key);
        Ok(Credentials::new(key_id, secret, token, Some(expires), "AssumeRole"))
    }
}

impl ProvideCredentials for RoleProvider {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.ask())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Hands out credentials that expire after `lifetime`.
    #[derive(Debug)]
    struct Short {
        asked: Arc<AtomicU32>,
        lifetime: Duration,
    }

    impl ProvideCredentials for Short {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            let n = self.asked.fetch_add(1, Ordering::SeqCst);
            let expires = SystemTime::now() + self.lifetime;
            future::ProvideCredentials::ready(Ok(Credentials::new(
                format!("key{n}"),
                "secret",
                Some("token".to_owned()),
                Some(expires),
                "test",
            )))
        }
    }

    fn source(lifetime: Duration) -> (CredentialSource, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let provider = SharedCredentialsProvider::new(Short { asked: asked.clone(), lifetime });
        let source = CredentialSource {
            provider: Some(provider),
            renewable: true,
            cached: Mutex::new(None),
            asking: tokio::sync::Mutex::new(()),
        };
        (source, asked)
    }

    #[tokio::test]
    async fn a_credential_is_kept_until_shortly_before_it_expires() {
        let (long, asked) = source(Duration::from_secs(3600));
        for _ in 0..3 {
            assert_eq!(long.current().await.unwrap().unwrap().key_id, "key0");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let (short, asked) = source(Duration::from_secs(60));
        for n in 0..3 {
            assert_eq!(short.current().await.unwrap().unwrap().key_id, format!("key{n}"));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_refused_credential_is_replaced_once() {
        let (source, _) = source(Duration::from_secs(3600));
        assert!(!source.discard());
        source.current().await.unwrap();
        assert!(source.discard());
        assert_eq!(source.current().await.unwrap().unwrap().key_id, "key1");
    }

    #[tokio::test]
    async fn static_keys_are_not_renewable_and_must_be_sendable() {
        let keys = |key_id: &str| S3Credentials::Static {
            key_id: key_id.to_owned(),
            secret: "s3cr3t".to_owned(),
            token: None,
        };
        let source = CredentialSource::new(&keys("key"), None).await;
        assert_eq!(source.current().await.unwrap().unwrap().secret_key, "s3cr3t");
        assert!(!source.discard());
        assert!(!format!("{:?} {source:?}", keys("key")).contains("s3cr3t"));
        let broken = CredentialSource::new(&keys("ke\ny"), None).await.current().await.unwrap_err();
        assert_eq!(broken.kind, ErrorKind::Unauthenticated);
    }

    #[tokio::test]
    async fn a_known_region_is_the_one_of_all_services() {
        let known = format!("{:?}", surroundings(Some("eu-west-1")).await);
        assert!(known.contains("eu-west-1"), "{known}");
    }

    #[tokio::test]
    async fn a_profile_of_a_file_is_used_as_velero_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cloud");
        let text = "[default]\naws_access_key_id=A\naws_secret_access_key=B\n\
                    [other]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\n";
        std::fs::write(&file, text).unwrap();
        for (name, expected) in [(None, ("A", None)), (Some("other".to_owned()), ("C", Some("E".to_owned())))]
        {
            let credentials = S3Credentials::Profile { name, file: Some(file.clone()) };
            let current = CredentialSource::new(&credentials, Some("eu-west-1"))
                .await
                .current()
                .await
                .unwrap()
                .unwrap();
            assert_eq!((current.key_id.as_str(), current.token.clone()), expected);
        }
        let missing = S3Credentials::Profile { name: Some("none".to_owned()), file: Some(file) };
        let error = CredentialSource::new(&missing, Some("eu-west-1")).await.current().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unauthenticated);
    }
}
