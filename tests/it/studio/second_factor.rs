//! Second factors over HTTP: setting one up, signing in with a code, and confirming what cannot be undone.

use std::time::Duration;

use hyper::StatusCode;
use tintype::http::routes::{Access, ROUTES};
use tintype::service::sign_in_attempts::CODE_ALLOWANCE;
use tintype_domain::person::Role;
use tintype_domain::second_factor::FactorSecret;
use tintype_store::{Action, PersonChange};

use super::{Visitor, path, text};
use crate::rigs::http::Answer;
use crate::rigs::service::Service;

const PASSWORD: &str = "correct horse battery";
const PAGE: &str = "/studio/second-factor";
/// The time after which an app shows another code.
const STEP: Duration = Duration::from_secs(30);

fn hidden(page: &str, name: &str) -> String {
    let rest = page.split(&format!("name=\"{name}\" value=\"")).nth(1).unwrap_or_else(|| panic!("{name}: {page}"));
    rest.split('"').next().expect("a value").to_owned()
}

fn is_signed_in(answer: &Answer) -> bool {
    answer.status == StatusCode::SEE_OTHER
        && answer.header("location") == "/studio"
        && answer.headers.contains_key("set-cookie")
}

impl Service {
    /// Shows the password of somebody with a second factor, and gets the form for the code.
    pub async fn show_password(&self, name: &str) -> CodeForm<'_> {
        let answer = self.post_form("/studio/sign-in", &[("name", name), ("password", PASSWORD)], &[]).await;
        self.code_form(&answer)
    }

    fn code_form(&self, answer: &Answer) -> CodeForm<'_> {
        assert!(answer.status == StatusCode::OK && !answer.headers.contains_key("set-cookie"), "{answer:?}");
        let fields = ["person", "ticket", "link"].map(|name| (name, hidden(text(answer), name)));
        CodeForm { service: self, fields }
    }
}

pub struct CodeForm<'a> {
    service: &'a Service,
    fields: [(&'static str, String); 3],
}

impl CodeForm<'_> {
    async fn send(&self, code: &str) -> Answer {
        self.send_from("192.0.2.1", code).await
    }

    /// Sends a code from an address, if the service trusts the proxy that says so.
    pub async fn send_from(&self, address: &str, code: &str) -> Answer {
        let fields = self.fields.iter().map(|(name, value)| (*name, value.as_str())).chain([("code", code)]);
        let fields: Vec<_> = fields.collect();
        self.service.post_form("/studio/sign-in/code", &fields, &[("x-forwarded-for", address)]).await
    }
}

/// Somebody with a password who has turned on a second factor.
pub struct Ada {
    visitor: Visitor,
    secret: FactorSecret,
    recovery: Vec<String>,
}

impl Ada {
    /// A service with these flags, and its Ada.
    async fn start(flags: &[&str]) -> (Service, Self) {
        let service = Service::start_with(flags).await;
        let ada = Self::named("ada", &service).await;
        (service, ada)
    }

    pub async fn named(name: &str, service: &Service) -> Self {
        let mut visitor = service.visitor(name, 10).await;
        let set = visitor.send("/studio/password", &[("new", PASSWORD)]).await;
        visitor.cookie = set.header("set-cookie").split(';').next().expect("a cookie").to_owned();
        let (secret, recovery) = visitor.turn_on(PASSWORD).await;
        // The code that has turned it on is used.
        service.clock.advance(STEP);
        Self { visitor, secret, recovery }
    }

    pub fn code(&self) -> String {
        self.secret.code(self.visitor.service.clock.now())
    }
}

impl Visitor {
    /// Turns on a second factor; returns its secret and the recovery codes.
    async fn turn_on(&self, confirmation: &str) -> (FactorSecret, Vec<String>) {
        let page = self.page(PAGE).await;
        let (secret, ticket) = (hidden(&page, "secret"), hidden(&page, "ticket"));
        let parsed = FactorSecret::parse(&secret).expect("a secret");
        let code = parsed.code(self.service.clock.now());
        let fields =
            [("secret", secret.as_str()), ("ticket", &ticket), ("code", &code), ("confirmation", confirmation)];
        let answer = self.send(PAGE, &fields).await;
        let codes = self.secrets(&answer).await;
        assert_eq!(codes.len(), 10, "{answer:?}");
        (parsed, codes)
    }
}

#[tokio::test]
async fn a_person_turns_on_a_second_factor_and_is_signed_out_elsewhere() {
    let service = Service::start().await;
    let mut ada = service.visitor("ada", 10).await;
    let set = ada.send("/studio/password", &[("new", PASSWORD)]).await;
    ada.cookie = set.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let elsewhere = service.call("POST", &service.link(&ada.person).await, &[], "").await;
    let elsewhere = elsewhere.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let page = ada.page(PAGE).await;
    assert!(page.contains("<img src=\"data:image/svg+xml;base64,") && page.contains("otpauth://totp/Tintype:ada"));
    let (secret, ticket) = (hidden(&page, "secret"), hidden(&page, "ticket"));
    let code = FactorSecret::parse(&secret).expect("a secret").code(service.clock.now());
    let own = FactorSecret::random();
    for (secret, code, confirmation, status) in [
        (secret.as_str(), "000000", PASSWORD, 422),
        (&secret, &code, "another password", 403),
        // The secret must be one of this server, for this person.
        (&own.base32(), &own.code(service.clock.now()), PASSWORD, 422),
        ("nonsense", &code, PASSWORD, 400),
    ] {
        let fields = [("secret", secret), ("ticket", &ticket), ("code", code), ("confirmation", confirmation)];
        assert_eq!(ada.send(PAGE, &fields).await.status, status, "{confirmation}");
    }
    assert!(service.shared.store.find_factor(ada.person.id).await.expect("a store").is_none());
    let (_, codes) = ada.turn_on(PASSWORD).await;
    assert!(codes.iter().all(|code| code.len() == 19));
    assert_eq!(service.call("GET", "/studio", &[("cookie", &elsewhere)], "").await.status, StatusCode::SEE_OTHER);
    let page = ada.page(PAGE).await;
    assert!(
        page.contains("10 recovery codes left") && !page.contains(&codes[0]) && !page.contains("otpauth"),
        "{page}"
    );
    assert!(ada.page("/studio/sessions").await.contains("also needs a code"));
    let log = service.shared.store.audit_entries(Some(ada.account), None, 1).await.expect("a store");
    assert_eq!((log[0].audited.action, log[0].actor.person_id), (Action::AddFactor, Some(ada.person.id)));
}

#[tokio::test]
async fn a_sign_in_with_a_password_needs_a_code_that_works_once() {
    let (service, ada) = Ada::start(&[]).await;
    let sessions = async || service.shared.store.list_sessions(ada.visitor.person.id).await.expect("a store").len();
    let form = service.show_password("ada").await;
    assert_eq!(sessions().await, 1, "nobody is signed in before the code");
    for wrong in ["000000", "", "not a code", &ada.recovery[0].replace(|_| true, "A")] {
        let refused = form.send(wrong).await;
        assert!(text(&refused).contains("wrong or has been used"), "{wrong}: {refused:?}");
        assert!(!refused.headers.contains_key("set-cookie"));
    }
    let code = ada.code();
    assert!(is_signed_in(&form.send(&code).await));
    assert_eq!(sessions().await, 2);
    let again = service.show_password("ada").await;
    assert!(!is_signed_in(&again.send(&code).await), "a code works once");
    // Nor does it in another process.
    let elsewhere = service.join(&[]).await;
    assert!(!is_signed_in(&elsewhere.show_password("ada").await.send(&code).await));
    service.clock.advance(STEP);
    assert!(is_signed_in(&elsewhere.show_password("ada").await.send(&ada.code()).await));
    for works in [true, false] {
        let form = service.show_password("ada").await;
        assert_eq!(
            is_signed_in(&form.send(&ada.recovery[3].to_lowercase()).await),
            works,
            "a recovery code works once"
        );
    }
}

#[tokio::test]
async fn a_sign_in_with_a_link_needs_the_code_too() {
    let (service, ada) = Ada::start(&[]).await;
    let link = service.link(&ada.visitor.person).await;
    let answer = service.call("POST", &link, &[], "").await;
    assert_eq!(answer.header("referrer-policy"), "strict-origin");
    let form = service.code_form(&answer);
    assert!(!is_signed_in(&form.send("000000").await));
    assert!(is_signed_in(&form.send(&ada.code()).await));
    service.clock.advance(STEP);
    assert!(!is_signed_in(&form.send(&ada.code()).await), "the link is used up");
}

#[tokio::test]
async fn a_form_for_a_code_is_worth_nothing_without_the_first_proof() {
    let (service, ada) = Ada::start(&[]).await;
    let eve = service.visitor("eve", 10).await;
    service.set_password(&eve.person, PASSWORD).await;
    let form = service.show_password("ada").await;
    let late = "took too long";
    let forged = |name: &'static str, value: &str| {
        let fields = form.fields.clone().map(|(of, own)| (of, if of == name { value.to_owned() } else { own }));
        CodeForm { service: &service, fields }
    };
    let link = service.link(&ada.visitor.person).await;
    let link = link.rsplit('/').next().expect("a token");
    for forged in [
        forged("ticket", ""),
        forged("ticket", "1.AAAA"),
        forged("person", eve.person.id.as_str()),
        forged("person", ""),
    ] {
        let refused = forged.send(&ada.code()).await;
        assert!(!is_signed_in(&refused) && text(&refused).contains(late), "{refused:?}");
    }
    // A link instead of the ticket is a proof too.
    service.clock.advance(STEP);
    assert!(is_signed_in(&forged("link", link).send(&ada.code()).await));
    // Ten minutes are enough.
    service.clock.advance(Duration::from_secs(10 * 60));
    assert!(text(&form.send(&ada.code()).await).contains(late));
    // A new password ends sign-ins that wait for their code.
    let form = service.show_password("ada").await;
    let change = PersonChange::Password("$argon2id$new".into());
    service.shared.store.change_person(ada.visitor.person.id, change).await.expect("a store");
    assert!(text(&form.send(&ada.code()).await).contains(late));
}

#[tokio::test]
async fn a_second_factor_that_is_turned_off_or_on_meanwhile_ends_the_sign_in() {
    let (service, ada) = Ada::start(&[]).await;
    let (store, id) = (&service.shared.store, ada.visitor.person.id);
    let form = service.show_password("ada").await;
    store.reset_factor(id).await.expect("a store");
    assert!(!is_signed_in(&form.send(&ada.code()).await), "the factor is gone");
    assert!(!is_signed_in(&form.send(&ada.recovery[0]).await), "and its recovery codes");
    // Somebody else's app does not open what the old one has begun.
    let signed_in = service.post_form("/studio/sign-in", &[("name", "ada"), ("password", PASSWORD)], &[]).await;
    assert!(is_signed_in(&signed_in));
    let cookie = signed_in.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let visitor =
        Visitor { service: service.clone(), cookie, account: ada.visitor.account, person: ada.visitor.person.clone() };
    let (secret, _) = visitor.turn_on(PASSWORD).await;
    service.clock.advance(STEP);
    assert!(!is_signed_in(&form.send(&ada.code()).await));
    assert!(is_signed_in(&form.send(&secret.code(service.clock.now())).await));
}

#[tokio::test]
async fn guesses_of_codes_are_limited_and_a_right_one_starts_the_count_anew() {
    let (service, ada) = Ada::start(&["--trusted-proxy", "127.0.0.1"]).await;
    let form = service.show_password("ada").await;
    let send = async |number: u32, code: &str| form.send_from(&format!("192.0.2.{number}"), code).await;
    for round in 0..2 {
        for number in 1..CODE_ALLOWANCE.get() {
            assert_eq!(send(number, "000000").await.status, StatusCode::OK, "{round}, {number}");
        }
        assert!(is_signed_in(&send(20, &ada.code()).await), "{round}");
        service.clock.advance(STEP);
    }
    for number in 1..=CODE_ALLOWANCE.get() {
        assert_eq!(send(number, "000000").await.status, StatusCode::OK, "{number}");
    }
    let refused = send(20, &ada.code()).await;
    assert!(refused.status == StatusCode::TOO_MANY_REQUESTS && text(&refused).contains("wrong codes"), "{refused:?}");
    service.clock.advance(Duration::from_secs(5 * 60));
    assert!(is_signed_in(&send(20, &ada.code()).await));
}

#[tokio::test]
async fn turning_it_off_and_new_recovery_codes_need_password_and_code() {
    let (service, ada) = Ada::start(&[]).await;
    for path in ["/studio/second-factor/codes", "/studio/second-factor/off"] {
        for (present, code) in
            [("another password", ada.code()), (PASSWORD, "000000".into()), (PASSWORD, String::new())]
        {
            let refused = ada.visitor.send(path, &[("present", present), ("code", &code)]).await;
            assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        }
    }
    let fields = [("present", PASSWORD), ("code", &ada.code())];
    let made = ada.visitor.send("/studio/second-factor/codes", &fields).await;
    let new = ada.visitor.secrets(&made).await;
    assert_eq!(new.len(), 10, "{made:?}");
    assert!(!is_signed_in(&service.show_password("ada").await.send(&ada.recovery[0]).await), "an old one");
    let again = ada.visitor.send("/studio/second-factor/off", &fields).await;
    assert_eq!(again.status, StatusCode::UNPROCESSABLE_ENTITY, "a used code");
    let off = [("present", PASSWORD), ("code", new[0].as_str())];
    assert_eq!(ada.visitor.send("/studio/second-factor/off", &off).await.status, StatusCode::SEE_OTHER);
    assert!(is_signed_in(&service.post_form("/studio/sign-in", &[("name", "ada"), ("password", PASSWORD)], &[]).await));
    let log = service.shared.store.audit_entries(Some(ada.visitor.account), None, 3).await.expect("a store");
    let actions: Vec<_> = log.iter().map(|entry| entry.audited.action).collect();
    assert_eq!(actions, [Action::RemoveFactor, Action::ReplaceRecoveryCodes, Action::AddFactor]);
}

#[tokio::test]
async fn a_required_second_factor_comes_before_everything_else() {
    for (required, role, is_held) in
        [("owners", Role::Owner, true), ("owners", Role::Member, false), ("everyone", Role::Viewer, true)]
    {
        let service = Service::start_with(&["--require-second-factor", required]).await;
        service.shared.store.create_account("ada", 10).await.expect("a store");
        let ada = service.visitor_as("ada", "ada", role).await;
        if !is_held {
            ada.page("/studio").await;
            continue;
        }
        let proof = hidden(&ada.page(PAGE).await, "proof");
        let own = [PAGE, "/studio/sign-out"];
        let mut held = 0;
        for route in ROUTES.iter().filter(|route| route.access == Access::Session && !own.contains(&route.pattern)) {
            let answer = match route.method.is_safe() {
                true => ada.get(&path(route.pattern)).await,
                false => ada.send_with(&path(route.pattern), &[("name", "x")], &proof, &[]).await,
            };
            let led = (answer.status, answer.header("location"));
            assert_eq!(led, (StatusCode::SEE_OTHER, PAGE), "{route:?}: {answer:?}");
            held += 1;
        }
        assert!(held > 50, "{held}");
        assert!(ada.page(PAGE).await.contains("requires two-factor authentication"));
        let page = ada.page(PAGE).await;
        let (secret, ticket) = (hidden(&page, "secret"), hidden(&page, "ticket"));
        let code = FactorSecret::parse(&secret).expect("a secret").code(service.clock.now());
        let fields = [("secret", secret.as_str()), ("ticket", &ticket), ("code", &code)];
        let on = ada.send_with(PAGE, &fields, &hidden(&page, "proof"), &[]).await;
        assert_eq!(on.header("location"), "/studio/secret", "{on:?}");
        ada.page("/studio").await;
    }
}

#[tokio::test]
async fn somebody_without_a_required_second_factor_may_sign_out() {
    let (_, ada) = Service::with_visitor(&["--require-second-factor", "everyone"], 10).await;
    let proof = hidden(&ada.page(PAGE).await, "proof");
    let out = ada.send_with("/studio/sign-out", &[], &proof, &[]).await;
    assert_eq!((out.status, out.header("location")), (StatusCode::SEE_OTHER, "/studio/sign-in"));
}

#[tokio::test]
async fn a_provider_is_responsible_for_the_second_factor() {
    use tintype_domain::identity::Identity;
    use tintype_domain::person::Token;
    use tintype_store::{NewSession, Proof};
    let (service, person) = Service::with_owner(&["--require-second-factor", "everyone"]).await;
    let identity = Identity::new("https://id.example", "ada").expect("an identity");
    let (store, token) = (&service.shared.store, Token::random());
    store.link_identity(person.id, &identity).await.expect("a store");
    let expires_at = store.now().saturating_add(Duration::from_secs(3_600));
    let new = NewSession { hash: token.hash(), expires_at, agent: String::new() };
    store
        .begin_session(person.id, Some(Proof::Identity(identity, store.now())), new)
        .await
        .expect("a store")
        .expect("a session");
    let cookie = format!("{}={}", super::COOKIE, token.reveal());
    let ada = Visitor { service: service.clone(), account: person.account_id, person, cookie };
    ada.page("/studio").await;
}

#[tokio::test]
async fn an_operator_confirms_what_cannot_be_undone() {
    let (service, operator) = Ada::start(&[]).await;
    let eve = service.visitor("eve", 10).await;
    eve.turn_on("").await;
    let grant = format!("/studio/operator/accounts/{}/grant", eve.account);
    let reset = format!("/studio/operator/people/{}/reset-factor", eve.person.id);
    let newest = operator.visitor.newest(eve.account.as_str()).await;
    let send = async |path: &str, confirmation: &str| {
        let fields = [("amount", "5"), ("newest", newest.as_str()), ("confirmation", confirmation)];
        operator.visitor.send(path, &fields).await.status
    };
    let disable = format!("/studio/operator/accounts/{}/disable", eve.account);
    assert_eq!(send(&disable, "").await, StatusCode::SEE_OTHER, "another form undoes it");
    service.shared.store.change_account(eve.account, tintype_store::AccountChange::Enable).await.expect("a store");
    for confirmation in ["", "another password", "000000", &operator.recovery[0]] {
        assert_eq!(send(&grant, confirmation).await, StatusCode::FORBIDDEN, "{confirmation}");
        assert_eq!(send(&reset, confirmation).await, StatusCode::FORBIDDEN, "{confirmation}");
    }
    assert_eq!(eve.credits().await, 10);
    let page = operator.visitor.page(&format!("/studio/operator/accounts/{}", eve.account)).await;
    assert!(page.contains("Your password or a code") && page.contains(&reset), "{page}");
    assert_eq!(send(&grant, &operator.code()).await, StatusCode::SEE_OTHER);
    assert_eq!(eve.credits().await, 15);
    assert_eq!(send(&reset, &operator.code()).await, StatusCode::FORBIDDEN, "a used code");
    assert_eq!(send(&reset, PASSWORD).await, StatusCode::SEE_OTHER);
    assert!(service.shared.store.find_factor(eve.person.id).await.expect("a store").is_none());
    assert_eq!(eve.get("/studio").await.status, StatusCode::SEE_OTHER, "she is signed out");
    let log = service.shared.store.audit_entries(Some(eve.account), None, 1).await.expect("a store");
    assert_eq!((log[0].audited.action, log[0].actor.name.as_str()), (Action::ResetFactor, "ada"));
}

#[tokio::test]
async fn an_operator_without_password_and_factor_must_have_signed_in_just_now() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 0).await;
    let eve = service.visitor("eve", 10).await;
    let grant = format!("/studio/operator/accounts/{}/grant", eve.account);
    for (wait, status) in [(600, StatusCode::SEE_OTHER), (1, StatusCode::FORBIDDEN)] {
        service.clock.advance(Duration::from_secs(wait));
        let newest = operator.newest(eve.account.as_str()).await;
        assert_eq!(operator.send(&grant, &[("amount", "5"), ("newest", &newest)]).await.status, status);
    }
    assert_eq!(eve.credits().await, 15);
    assert!(operator.page(&format!("/studio/operator/accounts/{}", eve.account)).await.contains("last ten minutes"));
}

#[tokio::test]
async fn confirmations_are_limited_before_anything_is_hashed() {
    let (_, operator) = Ada::start(&["--trusted-proxy", "127.0.0.1"]).await;
    let (path, proof) =
        (format!("/studio/operator/keys/{}/disable", operator.visitor.person.id), operator.visitor.proof().await);
    let mut statuses = Vec::new();
    for number in 1..=11 {
        let from = format!("192.0.2.{number}");
        let fields = [("confirmation", "another password")];
        statuses.push(operator.visitor.send_with(&path, &fields, &proof, &[("x-forwarded-for", &from)]).await.status);
    }
    let (wrong, often) = statuses.split_at(10);
    assert!(wrong.iter().all(|status| *status == StatusCode::FORBIDDEN), "{statuses:?}");
    assert_eq!(often, [StatusCode::TOO_MANY_REQUESTS]);
}

#[tokio::test]
async fn a_first_password_beside_a_second_factor_needs_a_code() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let (secret, _) = ada.turn_on("").await;
    service.clock.advance(STEP);
    assert!(ada.page("/studio/sessions").await.contains("name=\"confirmation\""));
    for (code, status) in [("", 403), ("000000", 403), (secret.code(service.clock.now()).as_str(), 303)] {
        let answer = ada.send("/studio/password", &[("new", PASSWORD), ("confirmation", code)]).await;
        assert_eq!(answer.status, status, "{code}: {answer:?}");
    }
}
