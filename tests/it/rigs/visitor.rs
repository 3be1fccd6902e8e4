//! People who are signed in to the studio of a service that runs in the test process.

use hyper::StatusCode;
use tintype::service::people::People;
use tintype_domain::model::{Id, Surface};
use tintype_domain::person::{Person, Role};
use tintype_store::PersonCreation;

use super::http::Answer;
use super::service::Service;

/// A person who is signed in.
pub struct Visitor<'a> {
    pub service: &'a Service,
    pub account: Id,
    pub person: Person,
    pub cookie: String,
}

impl Service {
    pub async fn person(&self, account: &str, name: &str, role: Role) -> Person {
        let store = &self.shared.store;
        let account = store.find_account(account).await.expect("a store").expect("an account");
        match store.create_person(account.id, name, role).await.expect("a store") {
            PersonCreation::Created(person) => person,
            refused => panic!("{refused:?}"),
        }
    }

    pub async fn link(&self, person: &Person) -> String {
        let (token, _) = People::new(self.shared.store.clone()).link(person).await.expect("a store").expect("a link");
        format!("/studio/sign-in/{}", token.reveal())
    }

    /// A new account with some credits, and its owner.
    pub async fn visitor(&self, name: &str, credits: i64) -> Visitor<'_> {
        self.shared.store.create_account(name, credits).await.expect("a store");
        self.visitor_as(name, name, Role::Owner).await
    }

    pub async fn visitor_as(&self, account: &str, name: &str, role: Role) -> Visitor<'_> {
        let person = self.person(account, name, role).await;
        let answer = self.call("POST", &self.link(&person).await, &[], "").await;
        assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio"));
        let cookie = set_cookie(&answer).to_owned();
        Visitor { service: self, account: person.account_id, person, cookie }
    }
}

impl Visitor<'_> {
    pub async fn get(&self, path: &str) -> Answer {
        self.service.call("GET", path, &[("cookie", &self.cookie)], "").await
    }

    pub async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        String::from_utf8(answer.body.to_vec()).expect("text")
    }

    /// Sends a form as the page of the studio would.
    pub async fn send(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let proof = self.proof().await;
        self.send_with(path, fields, &proof, &[]).await
    }

    /// Sends a form without fields as the script of the studio does.
    pub async fn send_as_script(&self, path: &str) -> Answer {
        self.send_with(path, &[], &self.proof().await, &[("x-requested-with", "studio")]).await
    }

    pub async fn proof(&self) -> String {
        let page = self.page("/studio/sessions").await;
        let proof = page.split("name=\"proof\" value=\"").nth(1).expect("a form");
        proof.split('"').next().expect("a proof").to_owned()
    }

    pub async fn send_with(
        &self,
        path: &str,
        fields: &[(&str, &str)],
        proof: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(fields).append_pair("proof", proof);
        let mut all = vec![("cookie", self.cookie.as_str()), ("content-type", "application/x-www-form-urlencoded")];
        all.extend_from_slice(headers);
        self.service.call("POST", path, &all, body.finish()).await
    }

    /// Follows the answer of a form to the page that shows a secret, and returns what it shows.
    pub async fn secrets(&self, made: &Answer) -> Vec<String> {
        assert_eq!((made.status, made.header("location")), (StatusCode::SEE_OTHER, "/studio/secret"), "{made:?}");
        let shown = self.get_secret(made).await;
        assert_eq!(shown.status, 200, "{shown:?}");
        let parts = text(&shown).split("class=\"secret\">").skip(1);
        parts.map(|rest| rest.split('<').next().expect("a secret").to_owned()).collect()
    }

    /// The only secret that the answer of a form leads to.
    pub async fn secret(&self, made: &Answer) -> String {
        let [secret] = self.secrets(made).await.try_into().expect("one secret");
        secret
    }

    /// The page that shows the secret that the answer of a form leads to.
    pub async fn get_secret(&self, made: &Answer) -> Answer {
        let cookies = format!("{}; {}", self.cookie, set_cookie(made));
        self.service.call("GET", "/studio/secret", &[("cookie", &cookies)], "").await
    }

    pub async fn create(&self, prompt: &str) -> Id {
        let answer = self.send("/studio/tasks", &[("prompt", prompt), ("shape", "1:1"), ("n", "1")]).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{answer:?}");
        let tasks = self.service.shared.store.list_tasks(self.account, Surface::Web, None, 1).await.expect("a store");
        tasks.first().expect("a task").id
    }

    pub async fn credits(&self) -> i64 {
        let account = self.service.shared.store.find_account(self.account.as_str()).await.expect("a store");
        account.expect("an account").credits
    }
}

/// The first cookie that an answer sets, as the browser sends it back.
pub fn set_cookie(answer: &Answer) -> &str {
    answer.header("set-cookie").split(';').next().expect("a cookie")
}

pub fn text(answer: &Answer) -> &str {
    std::str::from_utf8(&answer.body).expect("text")
}
