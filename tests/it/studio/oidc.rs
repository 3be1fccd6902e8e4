//! Signing in at an OpenID Connect provider, over HTTP and with a real provider.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::StatusCode;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tintype::http::ApiSettings;
use tintype::service::people::People;
use tintype_config::ServerSettings;
use tintype_domain::person::{Role, Token};
use tintype_store::{AccountChange, Action, PersonChange};
use tintype_system::clock::Clock;

use super::{Visitor, text};
use crate::rigs::binary::{self, Ran as _, Server, tintype};
use crate::rigs::http::{Answer, send};
use crate::rigs::oidc::Provider;
use crate::rigs::service::Service;

pub const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
/// Two addresses from which people come.
pub const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// A service that knows a provider.
pub struct Scene {
    pub provider: Provider,
    pub service: Service,
}

/// A browser on its way to the provider and back.
pub struct Trip {
    pub target: String,
    pub cookie: String,
}

impl Scene {
    pub async fn start(person: &str, flags: &[&str]) -> Self {
        Self::start_at(Provider::start(person), flags).await
    }

    pub async fn start_at(provider: Provider, flags: &[&str]) -> Self {
        let own = provider.flags();
        let all: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let service = Service::start_with(&all).await;
        // The provider dates its tokens.
        service.clock.set(Clock::system().now());
        Self { provider, service }
    }

    pub async fn depart(&self, path: &str, cookie: &str) -> Trip {
        let answer = self.service.call("GET", path, &[("cookie", cookie), ("sec-fetch-site", "same-origin")], "").await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{answer:?}");
        let cookie = answer.header("set-cookie").split(';').next().expect("a cookie").to_owned();
        Trip { target: answer.header("location").to_owned(), cookie }
    }

    /// Comes back from the provider with these cookies.
    async fn arrive(&self, target: &str, cookies: &str) -> Answer {
        let back = self.provider.visit(target).await;
        self.come_back(&format!("{}?{}", back.path(), back.query().expect("a query")), cookies).await
    }

    pub async fn come_back(&self, path: &str, cookies: &str) -> Answer {
        self.come_back_from(ADDRESSES[0], path, cookies).await
    }

    pub async fn come_back_from(&self, address: &str, path: &str, cookies: &str) -> Answer {
        let headers = [("cookie", cookies), ("sec-fetch-site", "cross-site"), ("x-forwarded-for", address)];
        let answer = self.service.call("GET", path, &headers, "").await;
        let ends = answer.headers.get_all("set-cookie").iter().any(|set| set.as_bytes().starts_with(b"tintype-oidc=;"));
        assert!(ends, "the authentication request is over: {answer:?}");
        answer
    }

    /// Somebody signs in with a browser that nobody knows.
    pub async fn sign_in(&self) -> Answer {
        let trip = self.depart("/studio/oidc", "").await;
        self.arrive(&trip.target, &trip.cookie).await
    }

    /// The form by which a person confirms an identity.
    async fn found(&self, visitor: &Visitor) -> [(&'static str, String); 2] {
        let trip = self.depart("/studio/oidc/link", &visitor.cookie).await;
        let page = self.arrive(&trip.target, &format!("{}; {}", visitor.cookie, trip.cookie)).await;
        assert_eq!(page.status, 200, "{page:?}");
        let value = |name: &str| {
            let rest = text(&page).split(&format!("name=\"{name}\" value=\"")).nth(1).expect("a field");
            rest.split('"').next().expect("a value").to_owned()
        };
        [("subject", value("subject")), ("ticket", value("ticket"))]
    }

    async fn people(&self) -> usize {
        self.service.shared.store.list_people(None).await.expect("a store").len()
    }
}

async fn link(visitor: &Visitor, form: &[(&'static str, String)]) -> Answer {
    let fields: Vec<_> = form.iter().map(|(name, value)| (*name, value.as_str())).collect();
    visitor.send("/studio/oidc/link", &fields).await
}

pub fn refused(answer: &Answer, status: StatusCode, words: &str) {
    assert!(answer.status == status && text(answer).contains(words), "{words}: {answer:?}");
    let session = answer.headers.get_all("set-cookie").iter().any(|set| set.as_bytes().starts_with(b"tintype="));
    assert!(!session, "{answer:?}");
}

#[tokio::test]
async fn a_person_links_an_identity_and_signs_in_with_it_until_it_is_removed() {
    let scene = Scene::start("ada#7", &[]).await;
    let ada = scene.service.visitor("grace", 10).await;
    let page = scene.service.call("GET", "/studio/sign-in", &[], "").await;
    assert!(text(&page).contains("href=\"/studio/oidc\">Sign in with 127.0.0.1:"), "{page:?}");
    refused(&scene.sign_in().await, FORBIDDEN, "is not linked to an account here");
    assert!(ada.page("/studio/sessions").await.contains("href=\"/studio/oidc/link\""));
    let form = scene.found(&ada).await;
    assert_eq!(form[0].1, "ada#7");
    refused(&scene.sign_in().await, FORBIDDEN, "is not linked to an account here");
    for _ in 0..2 {
        assert_eq!(link(&ada, &form).await.header("location"), "/studio/sessions");
    }
    let done = scene.sign_in().await;
    assert_eq!((done.status, done.header("location")), (StatusCode::SEE_OTHER, "/studio"));
    let mut cookies = done.headers.get_all("set-cookie").iter().map(|set| set.to_str().expect("text"));
    let session = cookies.find(|set| set.starts_with("tintype=")).expect("a session");
    assert!(session.contains("; HttpOnly; SameSite=Lax"), "{session}");
    let headers = [("cookie", session.split(';').next().expect("a cookie"))];
    assert!(text(&scene.service.call("GET", "/studio", &headers, "").await).contains("Signed in as grace"));
    let log = scene.service.shared.store.audit_entries(None, None, 10).await.expect("a store");
    let linked: Vec<_> = log.iter().filter(|entry| entry.audited.action == Action::LinkIdentity).collect();
    assert_eq!((linked.len(), linked[0].audited.detail.as_deref()), (1, Some(scene.provider.issuer.as_str())));
    // Without a password it is the only way in.
    refused(&ada.send("/studio/oidc/unlink", &[]).await, StatusCode::CONFLICT, "Set a password");
    let people = People::new(scene.service.shared.store.clone());
    let set = people.set_password(&ada.person, "correct horse battery".into()).await.expect("a store");
    assert!(set.expect("a good password").is_some());
    let again = scene.service.call("POST", &scene.service.link(&ada.person).await, &[], "").await;
    let cookie = again.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let ada = Visitor { cookie, ..ada };
    assert_eq!(ada.send("/studio/oidc/unlink", &[]).await.status, StatusCode::SEE_OTHER);
    refused(&scene.sign_in().await, FORBIDDEN, "is not linked to an account here");
}

#[tokio::test]
async fn a_name_or_an_address_leads_to_nobodys_account() {
    let scene = Scene::start("grace", &["--sign-up", "--sign-up-credits", "7", "--sign-up-per-address", "1"]).await;
    // The provider says that the address is verified, and it is the name of somebody here.
    let address = scene.service.visitor("grace@example.com", 10).await;
    let name = scene.service.visitor("grace", 10).await;
    let done = scene.sign_in().await;
    assert_eq!((done.status, done.header("location")), (StatusCode::SEE_OTHER, "/studio"));
    assert_eq!(scene.people().await, 3, "somebody new has signed up");
    let people = scene.service.shared.store.list_people(None).await.expect("a store");
    let new = people.iter().find(|person| ![address.person.id, name.person.id].contains(&person.id)).expect("one");
    assert_eq!(new.name, format!("grace-{}", new.id.as_str().to_lowercase()));
    assert!(!new.has_password && new.role == Role::Owner);
    let account = scene.service.shared.store.find_account(new.account_id.as_str()).await.expect("a store");
    assert!(account.is_some_and(|account| account.credits == 7 && !account.admin));
    for owner in [&address, &name] {
        assert_eq!(scene.service.shared.store.list_sessions(owner.person.id).await.expect("a store").len(), 1);
    }
    // The second time it is the same person. Somebody else is one too many.
    assert_eq!(scene.sign_in().await.status, StatusCode::SEE_OTHER);
    scene.provider.signs_in("eve");
    refused(&scene.sign_in().await, StatusCode::TOO_MANY_REQUESTS, "from your network today");
    assert_eq!(scene.people().await, 3);
    let change = AccountChange::Disable;
    scene.service.shared.store.change_account(new.account_id, change).await.expect("a store");
    scene.provider.signs_in("grace");
    refused(&scene.sign_in().await, FORBIDDEN, "account is disabled");
}

#[tokio::test]
async fn an_answer_counts_once_and_only_in_the_browser_that_was_sent() {
    let scene = Scene::start("ada", &["--sign-up"]).await;
    let other = scene.depart("/studio/oidc", "").await;
    for cookie in ["", "tintype-oidc=nonsense", other.cookie.as_str()] {
        let trip = scene.depart("/studio/oidc", "").await;
        refused(&scene.arrive(&trip.target, cookie).await, FORBIDDEN, "Begin again");
    }
    let trip = scene.depart("/studio/oidc", "").await;
    let back = scene.provider.visit(&trip.target).await;
    let query = back.query().expect("a query");
    assert!(query.contains("iss="), "{query}");
    for altered in [query.replace("state=", "state=x"), query.replace("iss=http", "iss=https"), String::new()] {
        let answer = scene.come_back(&format!("/studio/oidc/callback?{altered}"), &trip.cookie).await;
        refused(&answer, FORBIDDEN, "Begin again");
    }
    let whole = format!("/studio/oidc/callback?{query}");
    assert_eq!(scene.come_back(&whole, &trip.cookie).await.header("location"), "/studio");
    refused(&scene.come_back(&whole, &trip.cookie).await, FORBIDDEN, "could not be confirmed");
    let late = scene.depart("/studio/oidc", "").await;
    scene.service.clock.advance(Duration::from_secs(10 * 60 + 1));
    refused(&scene.arrive(&late.target, &late.cookie).await, FORBIDDEN, "Begin again");
    // A page of another site begins no authentication request.
    let foreign = scene.service.call("GET", "/studio/oidc", &[("sec-fetch-site", "cross-site")], "").await;
    assert_eq!(foreign.status, FORBIDDEN);
}

#[tokio::test]
async fn a_forged_authentication_request_never_reaches_the_provider() {
    let scene = Scene::start("ada", &["--sign-up"]).await;
    let genuine = scene.depart("/studio/oidc", "").await;
    refused(&scene.come_back(&with_false_code(&genuine), &genuine.cookie).await, FORBIDDEN, "could not be confirmed");
    // Anybody could make all of it but the signature.
    let text = format!("{}.{}", Token::random().reveal(), scene.service.shared.store.now().as_millis());
    let state = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(format!("tintype journey state {text}")));
    let path = format!("/studio/oidc/callback?code=x&state={state}");
    let (_, tag) = genuine.cookie.rsplit_once('.').expect("a signature");
    for forged in [text.clone(), format!("{text}."), format!("{text}.{tag}")] {
        refused(&scene.come_back(&path, &format!("tintype-oidc={forged}")).await, FORBIDDEN, "Begin again");
    }
}

/// The address at which a browser comes back with a code that the provider has not given.
pub fn with_false_code(trip: &Trip) -> String {
    let state = trip.target.split("state=").nth(1).and_then(|rest| rest.split('&').next()).expect("a state");
    format!("/studio/oidc/callback?code=x&state={state}")
}

#[tokio::test]
async fn an_address_has_few_exchanges_at_once_and_a_session_that_ends_meanwhile_links_nothing() {
    let scene = Scene::start("ada", &["--trusted-proxy", "127.0.0.1"]).await;
    let ada = scene.service.visitor("ada", 0).await;
    let mut ways = Vec::new();
    for _ in 0..6 {
        let trip = scene.depart("/studio/oidc/link", &ada.cookie).await;
        let back = scene.provider.visit(&trip.target).await;
        let path = format!("{}?{}", back.path(), back.query().expect("a query"));
        ways.push((path, format!("{}; {}", ada.cookie, trip.cookie)));
    }
    scene.provider.pause();
    let of_other = ways.pop().expect("a way");
    let mut all: FuturesUnordered<_> = ways.iter().map(|(path, cookies)| scene.come_back(path, cookies)).collect();
    // The provider answers none of the others, so that each of them has a place.
    refused(&all.next().await.expect("an answer"), TOO_MANY, "");
    let change = PersonChange::Password("none".into());
    scene.service.shared.store.change_person(ada.person.id, change).await.expect("a store");
    scene.provider.resume();
    refused(&scene.come_back_from(ADDRESSES[1], &of_other.0, &of_other.1).await, FORBIDDEN, "Begin again");
    while let Some(answer) = all.next().await {
        refused(&answer, FORBIDDEN, "Begin again");
    }
}

#[tokio::test]
async fn a_new_password_ends_the_authentication_requests_that_began_before() {
    let scene = Scene::start("ada", &[]).await;
    let ada = scene.service.visitor("ada", 0).await;
    let form = scene.found(&ada).await;
    assert_eq!(link(&ada, &form).await.status, StatusCode::SEE_OTHER);
    let begun = scene.depart("/studio/oidc", "").await;
    scene.service.clock.advance(Duration::from_millis(1));
    let set = ada.send("/studio/password", &[("new", "correct horse battery")]).await;
    assert_eq!(set.header("location"), "/studio/sessions?password=set");
    refused(&scene.arrive(&begun.target, &begun.cookie).await, FORBIDDEN, "Begin again");
    assert_eq!(scene.sign_in().await.header("location"), "/studio");
}

#[tokio::test]
async fn an_answer_that_is_wrong_signs_nobody_in_and_tells_no_detail() {
    let scene = Scene::start("ada", &["--sign-up"]).await;
    let altered = |target: &str, name: &str| {
        let (start, rest) = target.split_once(&format!("{name}=")).expect("a parameter");
        let rest = rest.split_once('&').map_or(String::new(), |(_, rest)| format!("&{rest}"));
        format!("{start}{name}=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM{rest}")
    };
    for name in ["nonce", "code_challenge"] {
        let trip = scene.depart("/studio/oidc", "").await;
        assert!(trip.target.contains("code_challenge_method=S256"), "{}", trip.target);
        let answer = scene.arrive(&altered(&trip.target, name), &trip.cookie).await;
        refused(&answer, FORBIDDEN, "could not be confirmed");
        assert!(!text(&answer).contains("nonce") && !text(&answer).contains("invalid_grant"), "{answer:?}");
    }
    // An ID token lasts an hour, and our clock decides.
    scene.service.clock.advance(Duration::from_secs(2 * 60 * 60));
    refused(&scene.sign_in().await, FORBIDDEN, "could not be confirmed");
    scene.provider.signs_in("nobody");
    refused(&scene.sign_in().await, FORBIDDEN, "did not sign you in");
    assert_eq!(scene.people().await, 0);
}

#[tokio::test]
async fn a_person_links_only_an_identity_that_the_provider_has_shown() {
    let scene = Scene::start("ada", &[]).await;
    let (ada, eve) = (scene.service.visitor("ada", 0).await, scene.service.visitor("eve", 0).await);
    let form = scene.found(&ada).await;
    refused(&link(&eve, &form).await, FORBIDDEN, "Begin again");
    let mut forged = form.clone();
    forged[0].1 = "grace".to_owned();
    refused(&link(&ada, &forged).await, FORBIDDEN, "Begin again");
    let fields = form.each_ref().map(|(name, value)| (*name, value.as_str()));
    refused(&ada.send_with("/studio/oidc/link", &fields, "", &[]).await, FORBIDDEN, "another page");
    // The authentication request of one person ends with that person.
    let trip = scene.depart("/studio/oidc/link", &ada.cookie).await;
    let cookies = format!("{}; {}", eve.cookie, trip.cookie);
    refused(&scene.arrive(&trip.target, &cookies).await, FORBIDDEN, "Begin again");
    // The authentication request and the ticket of one session end with that session.
    let again = scene.service.call("POST", &scene.service.link(&ada.person).await, &[], "").await;
    let cookie = again.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let (service, person) = (scene.service.clone(), ada.person.clone());
    let elsewhere = Visitor { service, account: ada.account, person, cookie };
    refused(&link(&elsewhere, &form).await, FORBIDDEN, "Begin again");
    let trip = scene.depart("/studio/oidc/link", &ada.cookie).await;
    let cookies = format!("{}; {}", elsewhere.cookie, trip.cookie);
    refused(&scene.arrive(&trip.target, &cookies).await, FORBIDDEN, "Begin again");
    let of_eve = scene.found(&eve).await;
    assert_eq!(link(&ada, &form).await.status, StatusCode::SEE_OTHER);
    refused(&link(&eve, &of_eve).await, StatusCode::CONFLICT, "another person");
    scene.provider.signs_in("grace");
    let second = scene.found(&ada).await;
    refused(&link(&ada, &second).await, StatusCode::CONFLICT, "another one");
    scene.service.clock.advance(Duration::from_secs(10 * 60 + 1));
    refused(&link(&eve, &of_eve).await, FORBIDDEN, "Begin again");
}

#[tokio::test]
async fn a_provider_that_cannot_be_used_is_told_plainly() {
    let service = Service::start().await;
    for path in ["/studio/oidc", "/studio/oidc/callback?code=x&state=y"] {
        let answer = service.call("GET", path, &[], "").await;
        assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio/sign-in"));
    }
    let provider = Provider::start("ada");
    let flags = provider.flags_with("another secret");
    let service = Service::start_with(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
    service.clock.set(Clock::system().now());
    let page = service.call("GET", "/studio/sign-in", &[], "").await;
    assert!(text(&page).contains("127.0.0.1"), "without a name, the host: {page:?}");
    let scene = Scene { provider, service };
    refused(&scene.sign_in().await, FORBIDDEN, "could not be confirmed");
    let Scene { provider, service } = scene;
    drop(provider);
    service.clock.advance(Duration::from_secs(10 * 60));
    let answer = service.call("GET", "/studio/oidc", &[], "").await;
    refused(&answer, StatusCode::SERVICE_UNAVAILABLE, "is not responding");
    assert!(!text(&answer).contains("127.0.0.1"), "{answer:?}");
}

#[tokio::test]
async fn a_provider_redirects_within_its_origin_alone() {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("an address"));
    let (provider, elsewhere) = (bind(), bind());
    let issuer = url(&provider);
    let answer = format!("HTTP/1.1 302 Found\r\nlocation: {}/\r\ncontent-length: 0\r\n\r\n", url(&elsewhere));
    std::thread::spawn(move || {
        for mut stream in provider.incoming().flatten() {
            let _ = stream.read(&mut [0; 4_096]).and_then(|_| stream.write_all(answer.as_bytes()));
        }
    });
    let directory = TempDir::new().expect("a directory");
    let log = directory.path().join("log");
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--oidc-issuer", &issuer, "--oidc-client-id", "tintype"]);
    command.arg("--data").arg(directory.path().join("data")).stderr(std::fs::File::create(&log).expect("a file"));
    let server = Server::spawn(command);
    let answer = send(server.address, "GET", "/studio/oidc", "", "").await;
    refused(&answer, StatusCode::SERVICE_UNAVAILABLE, "is not responding");
    let told = format!("it redirects to {}, which is not asked", url(&elsewhere));
    elsewhere.set_nonblocking(true).expect("a socket");
    assert!(elsewhere.accept().is_err(), "another origin was asked");
    server.stop();
    let said = std::fs::read_to_string(&log).expect("a log");
    assert!(said.contains(&told), "{said}");
}

#[tokio::test]
async fn production_goes_there_and_back_over_https() {
    let public = ["--production", "--trusted-proxy", "127.0.0.1", "--public-url", "https://images.example.com"];
    let named = ["--sign-up", "--oidc-name", "Example Accounts", "--oidc-audience", "one,two"];
    let scene = Scene::start("ada", &[&public[..], &named].concat()).await;
    let page = scene.service.call("GET", "/studio/sign-in", &[("x-forwarded-proto", "https")], "").await;
    assert!(text(&page).contains("Example Accounts"), "{page:?}");
    let plain = scene.service.call("GET", "/studio/oidc", &[], "").await;
    assert!(plain.status == FORBIDDEN && text(&plain).contains("HTTPS"), "{plain:?}");
    let https = ("x-forwarded-proto", "https");
    let away = scene.service.call("GET", "/studio/oidc", &[https], "").await;
    let cookie = away.header("set-cookie");
    assert!(cookie.starts_with("__Host-tintype-oidc=") && cookie.ends_with("; HttpOnly; SameSite=Lax; Secure"));
    let back = scene.provider.visit(away.header("location")).await;
    assert!(back.as_str().starts_with("https://images.example.com/studio/oidc/callback?"), "{back}");
    let path = format!("{}?{}", back.path(), back.query().expect("a query"));
    let cookie = cookie.split(';').next().expect("a cookie");
    let done = scene.service.call("GET", &path, &[https, ("cookie", cookie)], "").await;
    let cookies: Vec<_> = done.headers.get_all("set-cookie").iter().map(|set| set.to_str().expect("text")).collect();
    assert!(cookies.iter().any(|set| set.starts_with("__Host-tintype=") && set.ends_with("; Secure")), "{cookies:?}");
    assert!(cookies.iter().any(|set| set.starts_with("__Host-tintype-oidc=;")), "{cookies:?}");
}

#[test]
fn the_doctor_asks_a_provider_for_what_a_sign_in_needs() {
    let (provider, data) = (Provider::start("ada"), TempDir::new().expect("a directory"));
    let doctor = |issuer: &str, scope: &str| {
        let flags = ["doctor", "--json", "--oidc-issuer", issuer, "--oidc-client-id", "tintype", "--oidc-scope", scope];
        let check = binary::run(data.path(), flags).check("sign-in");
        (check["ok"] == true, check["detail"].as_str().expect("a text").to_owned())
    };
    assert_eq!(doctor(&provider.issuer, "openid"), (true, provider.issuer.clone()));
    let (is_ok, said) = doctor(&provider.issuer, "openid,identify");
    assert!(is_ok && said.contains("the scope identify:"), "{said}");
    let (is_ok, said) = doctor(&format!("{}/", provider.issuer), "openid");
    assert!(!is_ok && said.contains("write it as the provider does"), "{said}");
}

#[test]
fn a_provider_has_https_and_a_client_id() {
    let id = ["--oidc-client-id", "tintype"];
    for (issuer, is_good) in [
        ("https://id.example.com", true),
        ("https://id.example.com/realms/one/", true),
        ("http://127.0.0.1:8080", true),
        ("http://localhost:8080/realms/one", true),
        ("http://id.example.com", false),
        ("https://ada:secret@id.example.com", false),
        ("https://id.example.com/?a=b", false),
        ("https://id.example.com/realms/one/.well-known/openid-configuration", false),
        ("id.example.com", false),
    ] {
        let read = ServerSettings::from_flags([&["--oidc-issuer", issuer][..], &id].concat());
        assert_eq!(read.is_ok(), is_good, "{issuer}");
    }
    let issuer = ["--oidc-issuer", "https://id.example.com"];
    let others = [["--oidc-ca", "ca.pem"], ["--oidc-audience", "another"], ["--oidc-name", "One"]];
    let others = others.iter().map(|flags| &flags[..]);
    for alone in [&issuer[..], &id, &["--oidc-client-secret-file", "secret"]].into_iter().chain(others) {
        assert!(ServerSettings::from_flags(alone.iter().copied()).is_err(), "{alone:?}");
    }
    let check = |flags: &[&str], url: &str| {
        let settings = ServerSettings::from_flags([&issuer, &id, flags].concat()).expect("valid flags");
        ApiSettings::new(&settings, url).map(drop)
    };
    assert_eq!(check(&[], "http://127.0.0.1:8080"), Ok(()));
    assert_eq!(check(&["--production"], "https://images.example.com"), Ok(()));
    let plain = check(&["--production"], "http://127.0.0.1:8080").expect_err("cookies need HTTPS");
    assert!(plain.contains("--public-url"), "{plain}");
    let lost = check(&["--oidc-client-secret-file", "/nowhere"], "http://127.0.0.1:8080").expect_err("no file");
    assert!(lost.contains("--oidc-client-secret-file"), "{lost}");
}
