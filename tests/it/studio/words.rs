//! Failures and refusals in the language of the reader: the German studio shows no message of the API.

use std::time::Duration;

use tintype_domain::model::ReferenceProblem;

use super::*;
use crate::person::refuse;

/// Stored beside each cause. The API answers with it.
const OF_API: &str = "reference_images[0] is bad, says the API. Its credits were refunded.";
const CAUSES: [(FailureCause, &str); 17] = [
    (FailureCause::Policy, "Die Inhaltsrichtlinie erlaubt das nicht."),
    (FailureCause::Reference(0, ReferenceProblem::Address), "Von der Adresse von Vorlage 1 lädt"),
    (FailureCause::Reference(1, ReferenceProblem::Unreachable), "Vorlage 2 ließ sich nicht herunterladen."),
    (FailureCause::Reference(2, ReferenceProblem::TooLarge), "Vorlage 3 ist zu groß."),
    (FailureCause::Reference(3, ReferenceProblem::NotAnImage), "Vorlage 4 ist kein Bild"),
    (FailureCause::Reference(0, ReferenceProblem::Damaged), "Vorlage 1 ist beschädigt."),
    (FailureCause::Reference(0, ReferenceProblem::Gone), "Vorlage 1 wurde gelöscht."),
    (FailureCause::Reference(0, ReferenceProblem::MaskGone), "Die Maske zu Vorlage 1 wurde gelöscht."),
    (FailureCause::Reference(0, ReferenceProblem::MaskSize), "Die Maske zu Vorlage 1 hat eine andere Größe"),
    (FailureCause::Reference(1, ReferenceProblem::Unknown), "Vorlage 2 lässt sich nicht verwenden."),
    (FailureCause::TooManyReferences(0), "Dieser Server nimmt keine Vorlagen an."),
    (FailureCause::TooManyReferences(1), "Dieser Server nimmt eine Vorlage an."),
    (FailureCause::TooManyReferences(2), "Dieser Server nimmt höchstens 2 Vorlagen an."),
    (FailureCause::NoEngine, "Keine Engine dieses Servers"),
    (FailureCause::Engine, "Die Bilder ließen sich nicht erstellen."),
    (FailureCause::Lost, "auch nach mehreren Versuchen nicht"),
    (FailureCause::Expired, "nicht innerhalb von 9 Minuten fertig"),
];

async fn german(visitor: &Visitor, path: &str) -> String {
    let headers = [("cookie", visitor.cookie.as_str()), ("accept-language", "de")];
    let page = visitor.service.call("GET", path, &headers, "").await;
    assert_eq!(page.status, 200, "{path}: {page:?}");
    text(&page).into()
}

/// Fails the only task that waits.
async fn fail(service: &Service, cause: FailureCause, message: &str) {
    let claim = service.shared.store.claim(1, Duration::from_secs(60)).await.expect("a store").remove(0);
    service.shared.store.fail(claim.lease, cause, message).await.expect("a store");
}

fn assert_german(page: &str, cause: FailureCause) {
    for of_api in ["reference_images", "[0]", "says the API", "refunded", "credits were"] {
        assert!(!page.contains(of_api), "{cause}: {of_api}: {page}");
    }
}

#[tokio::test]
async fn the_opening_balance_has_a_german_name() {
    let service = Service::start().await;
    let ada = service.visitor("admin", 100).await;
    let of_operator = format!("/studio/operator/accounts/{}", ada.person.account_id);
    for path in ["/studio/credits", &of_operator] {
        let page = german(&ada, path).await;
        assert!(page.contains("Anfangsguthaben") && !page.contains("opening balance"), "{path}: {page}");
    }
}

#[tokio::test]
async fn every_failure_is_told_in_the_language_of_the_reader() {
    let service = Service::start().await;
    let ada = service.visitor("admin", 100).await;
    for (cause, german_message) in CAUSES {
        let id = ada.create("ein Boot").await;
        fail(&service, cause, OF_API).await;
        let page = german(&ada, &format!("/studio/tasks/{id}")).await;
        // It has neither the seed nor the size of pictures.
        let has_facts = page.contains("<dt>Startwert</dt>") || page.contains(" × ");
        assert!(page.contains("Ohne Vorlagen") && !has_facts, "{cause}: {page}");
        // The snippets for programs stand below the card.
        let card = page.split("</article>").next().expect("a card");
        assert!(card.contains("<strong>Fehlgeschlagen</strong>") && card.contains(german_message), "{cause}: {card}");
        assert!(card.contains("2 Credits erstattet."), "{cause}: {card}");
        assert_german(card, cause);
        for path in ["/studio", "/studio/gallery"] {
            let tiles = german(&ada, path).await;
            assert!(tiles.contains(german_message), "{cause}: {tiles}");
            assert_german(&tiles, cause);
        }
    }
    let overview = german(&ada, "/studio/operator").await;
    assert!(
        overview.contains("Die Inhaltsrichtlinie erlaubt das nicht.") && !overview.contains("says the API"),
        "{overview}"
    );
}

#[tokio::test]
async fn the_activity_of_the_api_is_shown_in_the_language_of_the_reader_and_answers_in_its_own() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let (_, key) = service.new_key(ada.account, |_| {}).await;
    let authorization = format!("Bearer {key}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    for (cause, german_message) in CAUSES {
        let submitted =
            service.call("POST", GENERATE, &headers, json!({ "prompt": "a boat" }).to_string()).await.json();
        let id = submitted["data"]["id"].as_str().expect("an id").to_owned();
        assert!(german(&ada, "/studio/activity").await.contains(">In Arbeit<"));
        fail(&service, cause, OF_API).await;
        let page = german(&ada, "/studio/activity").await;
        assert!(page.contains(german_message) && page.contains(">Fehlgeschlagen<"), "{cause}: {page}");
        assert_german(&page, cause);
        let task = service.call("GET", &format!("{TASKS}/imgmodel-{id}"), &headers, "").await.json();
        assert_eq!(task["data"]["error"], OF_API, "{cause}");
    }
}

#[tokio::test]
async fn suspensions_and_the_audit_log_are_told_in_the_language_of_the_reader() {
    let service = Service::start().await;
    let (operator, ada) = (service.visitor("admin", 0).await, service.visitor("ada", 100).await);
    ada.create("a boat").await;
    refuse(&service.shared.store).await;
    ada.send("/studio/people", &[("name", "grace"), ("role", "viewer")]).await;
    let bob = service.visitor("bob", 10).await;
    bob.send("/studio/people", &[("name", "grace"), ("role", "viewer")]).await;
    let account = format!("/studio/operator/accounts/{}", ada.account);
    for path in [&account, "/studio/operator/strikes", "/studio/operator/people", "/studio/operator/audit"] {
        let page = german(&operator, path).await;
        assert!(page.contains("1 Verstoß gegen die Inhaltsrichtlinie innerhalb von 2 Stunden"), "{path}: {page}");
        assert!(!page.contains("violation") && !page.contains("content policy"), "{path}: {page}");
    }
    let log = german(&operator, "/studio/operator/audit").await;
    assert!(log.contains("<span dir=\"auto\">Inhaltsrichtlinie</span>"), "{log}");
    assert!(log.contains("<span class=\"soft\" dir=\"auto\">Betrachter</span>") && !log.contains("viewer"), "{log}");
}

#[tokio::test]
async fn the_words_of_an_operator_and_of_an_unknown_cause_are_shown_as_they_are() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    for (cause, stored, shown) in [
        (FailureCause::Unknown, "It melted.", "It melted. 2 Credits erstattet."),
        (FailureCause::Unknown, OF_API, OF_API),
        (
            FailureCause::Operator,
            "Kein Papier",
            "Vom Betreiber dieses Servers beendet: Kein Papier. 2 Credits erstattet.",
        ),
        (
            FailureCause::Operator,
            "The task was stopped by the operator. Its credits were refunded.",
            "Vom Betreiber dieses Servers beendet. 2 Credits erstattet.",
        ),
    ] {
        let id = ada.create("a boat").await;
        fail(&service, cause, stored).await;
        for path in [&format!("/studio/tasks/{id}"), "/studio"] {
            let page = german(&ada, path).await;
            assert!(page.contains(shown), "{shown}: {page}");
        }
    }
}

#[tokio::test]
async fn every_refusal_of_the_form_is_told_in_the_language_of_the_reader() {
    let (_, ada) = Service::with_visitor(&[], 5).await;
    let long = "a".repeat(32_001);
    let long_link = format!("https://a.example/{}", "a".repeat(4_096));
    let many = "https://a.example/b.png\n".repeat(5);
    let proof = ada.proof().await;
    let headers = [("accept-language", "de"), ("x-requested-with", "studio")];
    for (field, value, message) in [
        ("prompt", "  ", "Beschreiben Sie zuerst das Bild."),
        (
            "prompt",
            "a\0boat",
            "Der Text enthält ein Zeichen, das sich nicht speichern lässt (U+0000). Entfernen Sie es.",
        ),
        ("prompt", &long, "Die Beschreibung ist zu lang. Erlaubt sind 32.000 Zeichen."),
        ("shape", "7:1", "Wählen Sie eines der Formate."),
        ("n", "5", "Wählen Sie 1 bis 4 Bilder."),
        ("n", "4", "Das kostet 8 Credits, und das Konto hat zu wenige."),
        ("references", "http://a.example/b.png", "Vorlage 1 ist kein Link."),
        ("references", "https://a.example/b.png\nboat", "Vorlage 2 ist kein Link."),
        ("references", &long_link, "Der Link von Vorlage 1 ist zu lang."),
        ("references", "https://me:word@a.example/b.png", "Der Link von Vorlage 1 enthält einen Benutzernamen"),
        ("references", "https://a.example:99/b.png", "Der Link von Vorlage 1 nennt einen Port"),
        ("references", "https://localhost/b.png", "Der Link von Vorlage 1 führt nicht zu einer öffentlichen Adresse."),
        ("references", "https://a b.example/", "Der Link von Vorlage 1 ist ungültig."),
        ("references", &many, "Höchstens vier Vorlagen sind möglich."),
        ("references", "upload:FAAAAAAAAAAAAAAAAAAAA", "Die Vorlage 1 gibt es nicht mehr."),
        ("preset", "gone", "Die Voreinstellung gone gibt es nicht mehr."),
        ("seed", "many", "Startwert: Geben Sie eine ganze Zahl von 0 bis"),
        ("steps", "9", "Diese Voreinstellung kennt die Einstellung „Schritte“ nicht."),
        ("steps", "many", "Diese Voreinstellung kennt die Einstellung „Schritte“ nicht."),
    ] {
        let mut fields: Vec<_> = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1")].into();
        fields.retain(|(name, _)| *name != field);
        fields.push((field, value));
        let refused = ada.send_with("/studio/tasks", &fields, &proof, &headers).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{field}={value}: {refused:?}");
        let said = text(&refused);
        assert!(said.starts_with(message), "{field}={value}: {said}");
        for of_api in ["must", "aspect_ratio", "reference_images", "prompt", "[0]"] {
            assert!(!said.contains(of_api), "{field}={value}: {said}");
        }
    }
    assert_eq!(ada.credits().await, 5);
}

#[tokio::test]
async fn errors_that_arise_outside_of_the_studio_are_told_in_the_language_of_the_reader() {
    let (service, ada) = Service::with_visitor(&[], 5).await;
    let headers = [("cookie", ada.cookie.as_str()), ("accept-language", "de")];
    for (method, path, message) in
        [("GET", "/studio/nowhere", "Diese Seite gibt es nicht"), ("DELETE", "/studio", "Diese Seite gibt es nicht")]
    {
        let answer = service.call(method, path, &headers, "").await;
        assert!(answer.status.is_client_error() && text(&answer).contains(message), "{method} {path}: {answer:?}");
    }
}
