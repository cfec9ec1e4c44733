//! `repository`: create, connect, disconnect, status, change-password.

use super::{client, provider, repair, sync, upgrade};
use crate::args::{
    ConnectArgs, ConnectionArgs, CreateArgs, FromConfigArgs, Place, RepositoryCommand, StatusArgs,
};
use crate::output::{self, bytes};
use crate::session::{Session, text_variable};
use crate::storage;
use anyhow::{Context, Result};
use lifeboat_kopia::connection::{
    CachingOptions, Connection, StorageInfo, decode_token, encode_token, forget_password, store_password,
};
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_primitives::kdf::KeyAlgorithm;
use serde_json::{Value, json};

/// Kopia's default for both caches.
const CACHE_BYTES: i64 = 5000 << 20;

pub fn run(session: &Session, command: RepositoryCommand) -> Result<()> {
    match command {
        RepositoryCommand::Create(args) => create(session, &args),
        RepositoryCommand::Connect(args) => connect(session, &args),
        RepositoryCommand::Disconnect => disconnect(session),
        RepositoryCommand::Status(args) => status(session, args),
        RepositoryCommand::Verify(args) => repair::verify(session, &args),
        RepositoryCommand::Repair(args) => repair::repair(session, &args),
        RepositoryCommand::SetClient(args) => client::set_client(session, &args),
        RepositoryCommand::SetParameters(args) => client::set_parameters(session, &args),
        RepositoryCommand::Upgrade(command) => upgrade::run(session, &command),
        RepositoryCommand::Throttle(command) => client::throttle(session, &command),
        RepositoryCommand::SyncTo(args) => sync::run(session, &args),
        RepositoryCommand::ValidateProvider(args) => provider::run(session, &args),
        RepositoryCommand::ChangePassword { new_password } => change_password(session, new_password),
    }
}

fn create(session: &Session, args: &CreateArgs) -> Result<()> {
    let (storage, password) = place(&args.to, Some(args.format_version))?;
    let password = password.map_or_else(|| session.password(), Ok)?;
    let connection = new_connection(session, storage, &args.connection)?;
    let create = CreateOptions {
        version: args.format_version,
        hash: args.block_hash.clone(),
        encryption: args.encryption.clone(),
        splitter: args.object_splitter.clone(),
        error_correction: match args.ecc_overhead_percent {
            0 => None,
            percent => Some((args.ecc.clone(), percent)),
        },
        key_algorithm: KeyAlgorithm::from_name(&args.format_block_key_derivation_algorithm)?,
        retention: client::retention(args.retention_mode.as_deref(), args.retention_period)?,
    };
    let options = session.open_options_with(&connection, true, password.clone())?;
    let repository = session.wait(Repository::create(options, &create, InitialState::Kopia))?;
    match args.create_only {
        true => println!("Created a repository in {}.", repository.store().describe()),
        false => {
            keep(session, &connection, &args.connection, &password)?;
            println!("Created and connected to a repository in {}.", repository.store().describe());
        }
    }
    session.wait(repository.close())?;
    Ok(())
}

fn connect(session: &Session, args: &ConnectArgs) -> Result<()> {
    let (storage, password) = place(&args.to, None)?;
    let password = password.map_or_else(|| session.password(), Ok)?;
    let connection = new_connection(session, storage, &args.connection)?;
    let options = session.open_options_with(&connection, false, password.clone())?;
    session.open_format(&options)?;
    keep(session, &connection, &args.connection, &password)?;
    println!("Connected to repository in {}.", options.store.describe());
    Ok(())
}

/// The storage that is meant, a sentence about it, and the password of a repository there if a token has it.
pub fn place(place: &Place, format_version: Option<u8>) -> Result<((StorageInfo, String), Option<Password>)> {
    match place {
        Place::Storage(storage) => Ok((storage::describe(storage, format_version)?, None)),
        Place::FromConfig(args) => from_config(args),
    }
}

/// The storage that another connection leads to, a sentence about it, and the password if it is there.
fn from_config(args: &FromConfigArgs) -> Result<((StorageInfo, String), Option<Password>)> {
    let (storage, password) = match args {
        FromConfigArgs { file: Some(file), .. } => (Connection::load(file)?.storage()?.clone(), None),
        FromConfigArgs { token: Some(token), .. } => decode_token(token)?,
        FromConfigArgs { token_file: Some(file), .. } => {
            let token = std::fs::read_to_string(file);
            decode_token(&token.with_context(|| format!("cannot read a token from {}", file.display()))?)?
        }
        _ => {
            let token = std::io::read_to_string(std::io::stdin());
            decode_token(&token.context("cannot read a token from the standard input")?)?
        }
    };
    let about = storage::about(&storage);
    Ok(((storage, about), password))
}

fn new_connection(
    session: &Session,
    (mut info, description): (StorageInfo, String),
    args: &ConnectionArgs,
) -> Result<Connection> {
    let speeds = [
        ("maxDownloadSpeedBytesPerSecond", args.max_download_speed),
        ("maxUploadSpeedBytesPerSecond", args.max_upload_speed),
    ];
    for (name, speed) in speeds {
        if let (Some(speed), Some(config)) = (speed, info.config.as_object_mut()) {
            config.insert(name.to_owned(), json!(speed));
        }
    }
    let mut connection = Connection::new(info, args.description.clone().unwrap_or(description));
    connection.readonly = args.readonly;
    connection.enable_actions = args.enable_actions;
    connection.hostname = args.override_hostname.clone().unwrap_or(connection.hostname);
    connection.username = args.override_username.clone().unwrap_or(connection.username);
    let folder = match &args.cache_directory {
        Some(folder) => std::path::absolute(folder)?,
        None => session.config_file().parent().unwrap_or(std::path::Path::new(".")).join("cache"),
    };
    let mut caching = CachingOptions {
        cache_directory: folder.to_str().context("the path of the cache is not valid UTF-8")?.to_owned(),
        content_cache_size: CACHE_BYTES,
        metadata_cache_size: CACHE_BYTES,
        max_list_cache_duration: 30.0,
        ..CachingOptions::default()
    };
    args.cache.apply(&mut caching);
    connection.caching = Some(caching);
    Ok(connection)
}

fn keep(
    session: &Session,
    connection: &Connection,
    args: &ConnectionArgs,
    password: &Password,
) -> Result<()> {
    connection.save(session.config_file())?;
    match args.no_persist_credentials {
        true => forget_password(session.config_file())?,
        false => store_password(session.config_file(), password)?,
    }
    Ok(())
}

fn disconnect(session: &Session) -> Result<()> {
    let file = session.config_file();
    session.connection()?;
    forget_password(file)?;
    std::fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))
}

fn status(session: &Session, args: StatusArgs) -> Result<()> {
    let connection = session.connection()?;
    let repository = session.open()?;
    let format = session.wait(repository.format());
    let inner = format.repository();
    let id = hex::encode(format.unique_id());
    let storage = connection.storage()?;
    if args.json.json {
        let mut status = json!({
            "configFile": session.config_file(),
            "uniqueIDHex": id,
            "clientOptions": client_options(&connection),
            "storage": { "type": storage.storage_type, "config": without_secrets(&storage.config) },
            "contentFormat": {
                "hash": inner.hash,
                "encryption": inner.encryption,
                "version": inner.version,
                "maxPackSize": inner.max_pack_size(),
                "indexVersion": inner.index_version(),
                "epochParameters": inner.epoch_parameters,
                "enablePasswordChange": inner.enable_password_change,
            },
            "objectFormat": { "splitter": inner.splitter() },
            "blobRetention": format.config(),
        });
        if let Some((capacity, available)) = volume(storage) {
            status["volume"] = json!({ "capacity": capacity, "available": available });
        }
        if let Some((name, percent)) = inner.error_correction() {
            status["contentFormat"]["ecc"] = json!(name);
            status["contentFormat"]["eccOverheadPercent"] = json!(percent);
        }
        return output::print_json(&status);
    }
    println!("Config file:         {}\n", session.config_file().display());
    println!("Description:         {}", connection.description);
    println!("Hostname:            {}", connection.hostname);
    println!("Username:            {}", connection.username);
    println!("Read-only:           {}\n", connection.readonly);
    println!("Storage type:        {}", storage.storage_type);
    println!("Storage:             {}\n", repository.store().describe());
    println!("Unique ID:           {id}");
    println!("Hash:                {}", inner.hash);
    println!("Encryption:          {}", inner.encryption);
    println!("Splitter:            {}", inner.splitter());
    println!("Format version:      {}", inner.version);
    println!("Content compression: {}", repository.contents().supports_compression());
    println!("Password changes:    {}", inner.enable_password_change);
    println!("Max pack length:     {}", bytes(inner.max_pack_size()));
    println!("Index Format:        v{}", inner.index_version());
    match args {
        StatusArgs { reconnect_token_with_password: true, .. } => {
            print_token(storage, Some(&session.password()?))
        }
        StatusArgs { reconnect_token: true, .. } => print_token(storage, None),
        _ => Ok(()),
    }
}

fn print_token(storage: &StorageInfo, password: Option<&Password>) -> Result<()> {
    let token = encode_token(storage, password)?;
    output::line("\nTo reconnect to the repository use:\n")?;
    output::line(&format!("$ lifeboat-repo repository connect from-config --token {}\n", *token))?;
    let holds = if password.is_some() { "the password and " } else { "" };
    eprintln!(
        "Keep it safe: whoever has the token has {holds}what credentials of the storage are in the connection."
    );
    Ok(())
}

fn client_options(connection: &Connection) -> Value {
    let mut options = json!({
        "hostname": connection.hostname,
        "username": connection.username,
        "description": connection.description,
        "enableActions": connection.enable_actions,
        "formatBlobCacheDuration": connection.format_blob_cache_duration,
    });
    if let (true, Some(fields)) = (connection.readonly, options.as_object_mut()) {
        fields.insert("readonly".to_owned(), json!(true));
    }
    options
}

/// How large the file system of a folder is, and how much of it is free.
fn volume(storage: &StorageInfo) -> Option<(u64, u64)> {
    let path = storage.config.get("path").filter(|_| storage.storage_type == "filesystem")?.as_str()?;
    let found = rustix::fs::statvfs(path).ok()?;
    Some((found.f_blocks.saturating_mul(found.f_frsize), found.f_bavail.saturating_mul(found.f_frsize)))
}

/// The settings of a storage without what nobody else may know.
fn without_secrets(config: &Value) -> Value {
    const SECRETS: [&str; 8] = [
        "secretAccessKey",
        "sessionToken",
        "storageKey",
        "sasToken",
        "clientSecret",
        "ClientSecret",
        "clientCertificate",
        "credentials",
    ];
    let mut shown = config.clone();
    if let Some(fields) = shown.as_object_mut() {
        for (_, value) in fields.iter_mut().filter(|(name, _)| SECRETS.contains(&name.as_str())) {
            *value = json!("*".repeat(8));
        }
    }
    shown
}

fn change_password(session: &Session, new_password: Option<String>) -> Result<()> {
    let new = new_password
        .or_else(|| text_variable(&["LIFEBOAT_NEW_PASSWORD", "KOPIA_NEW_PASSWORD"]))
        .context("no new password: set LIFEBOAT_NEW_PASSWORD or KOPIA_NEW_PASSWORD, or use --new-password")?;
    let new = Password::new(new);
    let options = session.open_options(&session.connection()?, false)?;
    let OpenOptions { store, environment, .. } = &options;
    let mut format = session.open_format(&options)?;
    session.wait(format.change_password(&**store, &new, environment))?;
    store_password(session.config_file(), &new)?;
    println!("The password is changed. Clients that are connected need the new one within 15 minutes.");
    Ok(())
}
