//! Accepted and rejected URLs.

use super::*;

#[track_caller]
fn check(expected: Result<(), UrlFault>, texts: &[&str]) {
    for text in texts {
        assert_eq!(ReferenceUrl::parse(text, &[443]).map(drop), expected, "{text:?}");
    }
}

#[test]
fn public_urls_pass() {
    check(
        Ok(()),
        &[
            "https://img.example.com/a.png",
            "https://x.example",
            "https://x.example?size=2",
            "https://x.example#top",
            "HTTPS://X.EXAMPLE/",
            "hTtPs://x.example:443/a",
            "https://x.example/a@b/c?mail=a@b",
            "https://x.example//127.0.0.1/",
            "https://8.8.8.8/a.png",
            "https://[2606:4700:4700::1111]/a.png",
            "https://[2606:4700:4700:0:0:0:0:1111]:443/a.png",
            "https://BÜCHER.example/",
            "https://xn--bcher-kva.example/",
            "https://例え.example/",
            "https://bücher.example/größe.png",
            "https://x.example/\u{645}\u{6cc}\u{200c}\u{62e}.png",
            "https://notlocalhost.example/",
            "https://local.example/",
            "https://xlocal.internals/",
            "https://home.arpa.example/",
            "https://a_b.example/",
            "https://127.0.0.1.example/",
        ],
    );
}

#[test]
fn other_schemes_are_refused() {
    check(
        Err(UrlFault::Scheme),
        &[
            "",
            "https",
            "https:",
            "https:/x.example/",
            "https:x.example",
            "http://x.example/",
            "httpss://x.example",
            "ftp://x.example/",
            "//x.example/",
            "x.example/a.png",
            "file:///etc/passwd",
            "data:image/png;base64,iVBORw0KGgo=",
            "iVBORw0KGgoAAAANSUhEUgAA",
            " https://x.example/",
            "\u{feff}https://x.example/",
            "ht\ntps://x.example/",
            "https:\\\\x.example/",
            "httpѕ://x.example/",
            "https:/／x.example/",
        ],
    );
}

#[test]
fn blank_and_control_characters_in_a_url_are_refused() {
    check(
        Err(UrlFault::Characters),
        &[
            "https://x.example/a b",
            "https://x.example/ ",
            "https://x.exa\tmple/",
            "https://x.example/\n",
            "https://x.example/\r\nHost: y",
            "https://x.example/\0",
            "https://x.example/\u{7f}",
            "https://x.example/\u{85}",
            "https://x.example/\u{a0}",
            "https://x.example/\u{3000}",
            "https://x.example/\u{2028}",
            "https://x.exam\u{200b}ple/",
            "https://x.example/\u{202e}gnp.a",
            "https://x.example/\u{feff}",
            "https:// /",
        ],
    );
}

#[test]
fn odd_authorities_are_refused() {
    check(Err(UrlFault::Backslash), &["https://x.example\\@y.example/", "https://x.example/a\\b", "https://\\x/"]);
    check(
        Err(UrlFault::Userinfo),
        &["https://@x.example/", "https://u@x.example/", "https://u:p@x.example/", "https://:@x.example", "https://@"],
    );
    check(
        Err(UrlFault::NoHost),
        &["https://", "https:///x.example/", "https:////x.example", "https://?a", "https://#a"],
    );
    check(
        Err(UrlFault::Malformed),
        &[
            "https://:443/",
            "https://x.example:port/",
            "https://x.example:65536/",
            "https://x.example:-1/",
            "https://[::1/",
            "https://[::1%25eth0]/",
            "https://[fe80::1%eth0]/",
            "https://[2606:4700:4700::1111]x/",
            "https://1.2.3.4.5/",
            "https://256.256.256.256/",
            "https://x.0x7f/",
            "https://x.example%00/",
            "https://x.example%2fy/",
            "https://u%40x.example/",
            "https://u＠x.example/",
            "https://x.example／y/",
            "https://<x>.example/",
            "https://%zz.example/",
            "https://\u{ad}/",
        ],
    );
}

#[test]
fn only_the_given_ports_pass() {
    check(
        Err(UrlFault::Port),
        &["https://x.example:80/", "https://x.example:8443/", "https://8.8.8.8:22/", "https://127.0.0.1:22/"],
    );
    assert!(ReferenceUrl::parse("https://x.example:8443/", &[443, 8443]).is_ok());
    assert_eq!(ReferenceUrl::parse("https://x.example/", &[8443]), Err(UrlFault::Port));
}

#[test]
fn names_that_are_not_public_are_refused() {
    check(
        Err(UrlFault::NotPublic),
        &[
            "https://localhost/",
            "https://LOCALHOST:443/",
            "https://localhost./",
            "https://localhost../",
            "https://%6cocalhost/",
            "https://ｌｏｃａｌｈｏｓｔ/",
            "https://local\u{ad}host/",
            "https://a.localhost/",
            "https://a.localhost./",
            "https://printer.local/",
            "https://printer.LOCAL./",
            "https://printer。local/",
            "https://metadata.google.internal/",
            "https://metadata.google.internal./",
            "https://home.arpa/",
            "https://nas.home.arpa./",
            "https://intranet/",
            "https://intranet./",
            "https://com./",
            "https://./",
            "https://../",
            "https://.example.com/",
            "https://x..example/",
            "https://x.example../",
            "https://127.0.0.1../",
        ],
    );
}

#[test]
fn addresses_that_are_not_public_are_refused_in_every_spelling() {
    check(
        Err(UrlFault::NotPublic),
        &[
            "https://127.0.0.1/",
            "https://127.0.0.1./",
            "https://127.0.0.1:443/",
            "https://127.1/",
            "https://127.0.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0x7f.1/",
            "https://0X7F.0.0.0x1/",
            "https://017700000001/",
            "https://0177.0.0.01/",
            "https://１２７.０.０.１/",
            "https://①②⑦.⓪.⓪.①/",
            "https://127。0。0。1/",
            "https://127%2e0%2e0%2e1/",
            "https://%31%32%37.0.0.1/",
            "https://0/",
            "https://0.0.0.0/",
            "https://10.1.2.3/",
            "https://100.64.0.1/",
            "https://169.254.169.254/latest/meta-data/",
            "https://2852039166/",
            "https://172.16.0.1/",
            "https://192.168.1.1/",
            "https://224.0.0.1/",
            "https://255.255.255.255/",
            "https://[::]/",
            "https://[::1]/",
            "https://[0:0:0:0:0:0:0:1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://[::ffff:8.8.8.8]/",
            "https://[::127.0.0.1]/",
            "https://[64:ff9b::10.0.0.1]/",
            "https://[2002:7f00:1::]/",
            "https://[fe80::1]/",
            "https://[fd00:ec2::254]/",
            "https://[ff02::1]/",
        ],
    );
}

#[test]
fn hosts_and_ports_that_are_not_plainly_said_are_refused() {
    check(
        Err(UrlFault::Disguised),
        &[
            "https://x.example.",
            "https://x.example./a.png",
            "https://bücher.example./",
            "https://x.example:/a",
            "https://x.example:0443/",
            "https://8.8.8.8./",
            "https://0x08080808/",
            "https://134744072/",
            "https://010.8.8.8/",
            "https://8.8.2056/",
            "https://８.８.８.８/",
            "https://8。8。8。8/",
            "https://①.①.①.①/",
            "https://8%2e8.8.8/",
            "https://ｘ.example/",
            "https://x。example/",
            "https://x.exam%70le/",
            "https://x.ex\u{ad}ample/",
            "https://ﬁ.example/",
            "https://x.b%C3%BCcher.example/",
            "https://bu\u{308}cher.example/",
            "https://[2606:4700:4700::1111]:/",
        ],
    );
}

#[test]
fn length_is_counted_in_characters() {
    let of_length = |characters: usize| {
        let start = "https://x.example/";
        format!("{start}{}", "é".repeat(characters - start.len()))
    };
    assert!(ReferenceUrl::parse(&of_length(MAX_URL_CHARS), &[443]).is_ok());
    assert_eq!(ReferenceUrl::parse(&of_length(MAX_URL_CHARS + 1), &[443]), Err(UrlFault::Length));
}

#[test]
fn the_original_text_is_kept_and_the_query_not_debugged() {
    let text = "HTTPS://X.example:443/a/../b?signature=secret#part";
    let url = ReferenceUrl::parse(text, &[443]).unwrap();
    assert_eq!(url.as_str(), text);
    assert_eq!(url.to_string(), text);
    assert_eq!(format!("{url:?}"), r#"ReferenceUrl("https://x.example/b")"#);
}

#[test]
fn redirects_obey_the_same_rules() {
    let from = ReferenceUrl::parse("https://x.example/a/b", &[443]).unwrap();
    let followed = |location: &str| from.redirected(location, &[443]).map(|url| url.to_string());
    for (location, expected) in [
        ("c", Ok("https://x.example/a/c")),
        ("/c?d", Ok("https://x.example/c?d")),
        ("//y.example/c", Ok("https://y.example/c")),
        ("https://y.example/c", Ok("https://y.example/c")),
        ("http://y.example/c", Err(UrlFault::Scheme)),
        ("file:///etc/passwd", Err(UrlFault::Scheme)),
        ("//127.0.0.1/c", Err(UrlFault::NotPublic)),
        ("//10.0.0.1/c", Err(UrlFault::NotPublic)),
        ("\\\\10.0.0.1\\c", Err(UrlFault::Backslash)),
        ("/\\10.0.0.1/c", Err(UrlFault::Backslash)),
        ("/\t/10.0.0.1/c", Err(UrlFault::Characters)),
        ("https:10.0.0.1/c", Ok("https://x.example/a/10.0.0.1/c")),
        ("https:/10.0.0.1/c", Ok("https://x.example/10.0.0.1/c")),
        ("///10.0.0.1/c", Err(UrlFault::NoHost)),
        ("https://0x08080808/", Err(UrlFault::Disguised)),
        ("//y.example./", Err(UrlFault::Disguised)),
        ("https://u:p@y.example/", Err(UrlFault::Userinfo)),
        ("https://y.example:22/", Err(UrlFault::Port)),
        ("https://[", Err(UrlFault::Malformed)),
    ] {
        assert_eq!(followed(location).as_deref(), expected.as_ref().copied(), "{location}");
    }
}
