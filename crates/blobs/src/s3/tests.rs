#![allow(clippy::unwrap_used)]

use super::*;
use crate::rest::Protocol;

async fn s3(encryption: Encryption) -> S3 {
    S3 {
        bucket: "b".to_owned(),
        prefix: "kopia/ns/".to_owned(),
        base: "https://b.example".to_owned(),
        region: "r".to_owned(),
        credentials: CredentialSource::new(&S3Credentials::Anonymous, None).await,
        encryption,
        storage_class: Some("STANDARD_IA".to_owned()),
        checksums: Checksums::Off,
        puts: OnceCell::new_with(Some(PutSettings {
            storage_config: serde_json::from_str(
                r#"{"blobOptions":[{"prefix":"q","storageClass":"STANDARD"}]}"#,
            )
            .unwrap(),
            sends_checksums: false,
        })),
        checks_crc: OnceCell::new_with(Some(true)),
    }
}

fn headers(call: &Call) -> Vec<(String, String)> {
    let mut all: Vec<_> = call
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    all.sort();
    all
}

fn header<'a>(call: &'a Call, name: &str) -> Option<&'a str> {
    call.headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_plain_put_says_no_more_than_it_must() {
    let s3 = S3 { storage_class: None, ..s3(Encryption::BucketDefault).await };
    let plain = PutRequest { create_only: false, lock: None };
    let call = s3.put("kopia/ns/p ä", "p ä", Payload::from(b"abc".as_slice()), plain).await.unwrap();
    assert_eq!(call.url, "https://b.example/kopia/ns/p%20%C3%A4");
    assert_eq!(headers(&call), [("content-type".to_owned(), CONTENT_TYPE.to_owned())]);
    let SignedBody::Sha256(sha256) = call.signed else { unreachable!("{:?}", call.signed) };
    assert!(hex::encode(sha256).starts_with("ba7816bf8f01cfea"));
}

#[tokio::test]
async fn large_bodies_are_covered_by_a_crc_where_the_store_checks_one() {
    let s3 = s3(Encryption::BucketDefault).await;
    let plain = PutRequest { create_only: false, lock: None };
    let large = Payload::from(vec![7; LARGE as usize]);
    let call = s3.put("k", "p1", large.clone(), plain).await.unwrap();
    assert_eq!((call.signed, header(&call, CRC_HEADER)), (SignedBody::Left, Some("fRcoag==")));

    let until = Timestamp::new(1_700_000_000, 0).unwrap();
    let locked = PutRequest { lock: Some((RetentionMode::Governance, until)), ..plain };
    let unproven =
        S3 { checks_crc: OnceCell::new_with(Some(false)), ..self::s3(Encryption::BucketDefault).await };
    let unknown = S3 { checks_crc: OnceCell::new(), ..self::s3(Encryption::BucketDefault).await };
    for (s3, body, request) in [
        (&s3, Payload::from(vec![7; LARGE as usize - 1]), plain),
        (&s3, large.clone(), locked),
        (&unproven, large.clone(), plain),
        (&unknown, large, plain),
    ] {
        let call = s3.put("k", "p1", body, request).await.unwrap();
        assert!(matches!(call.signed, SignedBody::Sha256(_)), "{:?}", call.signed);
        assert_eq!(header(&call, CRC_HEADER), None);
    }
}

#[tokio::test]
async fn locks_classes_and_conditions_become_headers() {
    let s3 = s3(Encryption::Kms { key_id: Some("arn:key".to_owned()) }).await;
    let until = Timestamp::new(1_700_000_000, 1).unwrap();
    let request = PutRequest { create_only: true, lock: Some((RetentionMode::Compliance, until)) };
    let call = s3.put("k", "p1", Payload::from(b"abc".as_slice()), request).await.unwrap();
    assert_eq!(header(&call, "if-none-match"), Some("*"));
    assert_eq!(header(&call, "content-md5"), Some("kAFQmDzST7DWlj99KOF/cg=="));
    assert_eq!(header(&call, "x-amz-object-lock-mode"), Some("COMPLIANCE"));
    assert_eq!(header(&call, "x-amz-object-lock-retain-until-date"), Some("2023-11-14T22:13:21Z"));
    assert_eq!(header(&call, "x-amz-storage-class"), Some("STANDARD_IA"));
    assert_eq!(header(&call, "x-amz-server-side-encryption"), Some("aws:kms"));
    assert_eq!(header(&call, "x-amz-server-side-encryption-aws-kms-key-id"), Some("arn:key"));
    let call = s3.put("k", "q1", Payload::default(), request).await.unwrap();
    assert_eq!(header(&call, "x-amz-storage-class"), Some("STANDARD"));
}

#[tokio::test]
async fn a_customer_key_travels_with_reads_and_writes_but_not_with_debug_output() {
    let s3 = s3(Encryption::CustomerKey(CustomerKey::new([7; 32]))).await;
    let plain = PutRequest { create_only: false, lock: None };
    for call in [s3.get("k"), s3.head("k"), s3.put("k", "k", Payload::default(), plain).await] {
        let call = call.unwrap();
        assert_eq!(header(&call, "x-amz-server-side-encryption-customer-algorithm"), Some("AES256"));
        let key = header(&call, "x-amz-server-side-encryption-customer-key").unwrap();
        assert_eq!(BASE64_STANDARD.decode(key).unwrap(), [7; 32]);
        assert!(!format!("{s3:?}").contains(key));
    }
}

#[tokio::test]
async fn listings_are_decoded_and_must_be_continuable() {
    let s3 = s3(Encryption::BucketDefault).await;
    let body = br#"<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
        <Name>b</Name><IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>
        <NextContinuationToken>to+ken=</NextContinuationToken>
        <Contents><Key>kopia/ns/a+b%2B</Key><LastModified>2026-08-20T10:00:00.123Z</LastModified>
        <ETag>"x"</ETag><Size>17</Size><StorageClass>STANDARD</StorageClass></Contents>
        <Contents><Key>kopia/ns/c</Key><LastModified>2026-08-20T10:00:01Z</LastModified><Size>0</Size></Contents>
        </ListBucketResult>"#;
    let page = s3.page(body).unwrap();
    let keys: Vec<_> = page.objects.iter().map(|(key, found)| (key.as_str(), found.size)).collect();
    assert_eq!(keys, [("kopia/ns/a b+", 17), ("kopia/ns/c", 0)]);
    assert_eq!(page.next.as_deref(), Some("to+ken="));
    let next = s3.list("kopia/ns/", page.next.as_deref()).unwrap().url;
    assert!(
        next.contains("continuation-token=to%2Bken%3D") && next.ends_with("prefix=kopia%2Fns%2F"),
        "{next}"
    );
    assert!(s3.page(b"<ListBucketResult></ListBucketResult>").unwrap().objects.is_empty());
    for damaged in [
        &b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"[..],
        b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        b"<html>",
        b"",
        &body[..300],
        b"\xff",
    ] {
        assert!(s3.page(damaged).is_err(), "{}", String::from_utf8_lossy(damaged));
    }
}

#[tokio::test]
async fn refusals_are_told_apart_by_their_codes() {
    let s3 = s3(Encryption::BucketDefault).await;
    let kind = |status: u16, code: &str, message: &str| {
        let body = format!("<Error><Code>{code}</Code><Message>{message}</Message><Key>k</Key></Error>");
        let refusal = s3.refusal(&HeaderMap::new(), body.as_bytes());
        assert_eq!((refusal.code.as_str(), refusal.message.as_str()), (code, message));
        s3.kind(StatusCode::from_u16(status).unwrap(), &refusal)
    };
    assert_eq!(kind(404, "NoSuchBucket", ""), Some(ErrorKind::NoSuchContainer));
    assert_eq!(kind(403, "SignatureDoesNotMatch", ""), Some(ErrorKind::Unauthenticated));
    assert_eq!(kind(400, "ExpiredToken", ""), Some(ErrorKind::Unauthenticated));
    assert_eq!(kind(503, "SlowDown", ""), Some(ErrorKind::Transient));
    assert_eq!(kind(409, "ConditionalRequestConflict", ""), Some(ErrorKind::Transient));
    let no_lock = "Bucket is missing Object Lock Configuration";
    assert_eq!(kind(400, "InvalidRequest", no_lock), Some(ErrorKind::Unsupported));
    assert_eq!(kind(403, "AccessDenied", ""), None);
}
