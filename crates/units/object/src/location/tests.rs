use super::*;

fn location(url: &str, settings: &[(&str, &str)]) -> Result<Location, LocationError> {
    let settings = settings.iter();
    let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Location::with_settings(url, settings)
}

#[test]
fn a_url_names_a_bucket_and_a_prefix() {
    let keys = [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
    ];
    for (given, url, prefix) in [
        ("s3://bucket", "s3://bucket", ""),
        ("s3://bucket/", "s3://bucket", ""),
        ("s3://my.bucket/a/b-1/", "s3://my.bucket/a/b-1", "a/b-1"),
        ("gs://bucket/a", "gs://bucket/a", "a"),
        ("az://container/a", "az://container/a", "a"),
    ] {
        let location = location(given, &keys).expect(given);
        assert_eq!((location.url(), location.prefix.as_ref()), (url, prefix));
        assert!(is_object_url(given));
    }
}

#[test]
fn what_is_no_such_url_is_refused() {
    for url in [
        "",
        "bucket",
        "file:///srv/u1",
        "S3://bucket",
        "s3:/bucket",
        "s3://",
        "s3:///prefix",
        "s3://user@bucket/prefix",
        "s3://bucket:80/prefix",
        "s3://bucket//a",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a?b",
        "s3://bucket/a#b",
        "s3://bucket/a%2fb",
        "s3://bucket/a b",
        "s3://bucket/ä",
    ] {
        let refused = location(url, &[]);
        assert!(
            matches!(refused, Err(LocationError::Url { .. })),
            "{url}: {refused:?}"
        );
    }
}

#[test]
fn plain_http_is_for_this_machine_unless_it_is_asked_for() {
    let at = |endpoint: &str, allowed: &str| {
        let settings = [("AWS_ENDPOINT_URL", endpoint), ("AWS_ALLOW_HTTP", allowed)];
        location("s3://bucket", &settings).map(|_| ())
    };
    for endpoint in [
        "http://127.0.0.1:9000",
        "http://127.8.0.1",
        "http://localhost:9000/",
        "HTTP://[::1]:9000",
        "https://store.example",
    ] {
        assert!(at(endpoint, "false").is_ok(), "{endpoint}");
    }
    for endpoint in [
        "http://store.example:9000",
        "http://10.0.0.1",
        "http://localhost.example",
        "http://localhost@store.example",
        "http://127.0.0.1@store.example",
        "http://[::2]:9000",
        "http://",
    ] {
        let refused = at(endpoint, "false");
        assert!(
            matches!(refused, Err(LocationError::PlainHttp { .. })),
            "{endpoint}: {refused:?}"
        );
        assert!(at(endpoint, "true").is_ok(), "{endpoint}");
    }
    let google = location(
        "gs://bucket",
        &[("GOOGLE_BASE_URL", "http://store.example")],
    );
    assert!(
        matches!(google, Err(LocationError::PlainHttp { .. })),
        "{google:?}"
    );
    // Each of several counts, however it is spelled.
    let settings = [
        ("AWS_ENDPOINT_URL", "https://store.example"),
        ("AWS_ENDPOINT_URL_S3", "http://store.example"),
    ];
    let both = location("s3://bucket", &settings);
    let odd = location("s3://bucket", &[("AWS_endpoint", "http://store.example")]);
    assert!(
        matches!(odd, Err(LocationError::PlainHttp { .. })),
        "{odd:?}"
    );
    assert!(
        matches!(both, Err(LocationError::PlainHttp { .. })),
        "{both:?}"
    );
}

#[test]
fn a_setting_that_makes_no_sense_is_an_error() {
    let settings = [("AWS_ACCESS_KEY_ID", "key without a secret")];
    let location = location("s3://bucket", &settings);
    assert!(
        matches!(location, Err(LocationError::Settings { .. })),
        "{location:?}"
    );
}
