//! People who are signed in to the studio of a service that runs in the test process.

use hyper::StatusCode;
use tintype::service::people::People;
use tintype_domain::model::{Id, Status, Surface};
use tintype_domain::person::{Person, Role};
use tintype_store::PersonAdded;

use super::http::Answer;
use super::service::Service;

/// A person who is signed in.
pub struct Visitor {
    pub service: Service,
    pub account: Id,
    pub person: Person,
    pub cookie: String,
}

impl Service {
    /// Starts with flags of `tintype serve`, an account `ada` with 10 credits, and its owner `ada`.
    pub async fn with_owner(flags: &[&str]) -> (Self, Person) {
        let service = Self::start_with(flags).await;
        service.shared.store.create_account("ada", 10).await.expect("a store");
        let owner = service.person("ada", "ada", Role::Owner).await;
        (service, owner)
    }

    pub async fn person(&self, account: &str, name: &str, role: Role) -> Person {
        let store = &self.shared.store;
        let account = store.find_account(account).await.expect("a store").expect("an account");
        match store.create_person(account.id, name, role).await.expect("a store") {
            PersonAdded::Done(person) => person,
            refused => panic!("{refused:?}"),
        }
    }

    pub async fn link(&self, person: &Person) -> String {
        let (token, _) = People::new(self.shared.store.clone()).link(person).await.expect("a store").expect("a link");
        format!("/studio/sign-in/{}", token.reveal())
    }

    /// A new account with some credits, and its owner.
    pub async fn visitor(&self, name: &str, credits: i64) -> Visitor {
        self.shared.store.create_account(name, credits).await.expect("a store");
        self.visitor_as(name, name, Role::Owner).await
    }

    /// Sends a form that needs no session, with these headers besides the usual ones.
    pub async fn post_form(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Answer {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let form = ("content-type", "application/x-www-form-urlencoded");
        self.call("POST", path, &[&[form], headers].concat(), body).await
    }

    pub async fn set_password(&self, person: &Person, password: &str) -> Person {
        let set = People::new(self.shared.store.clone()).set_password(person, password.into()).await;
        set.expect("a store").expect("a good password").expect("a person")
    }

    /// The person with a name or an id.
    pub async fn find_person(&self, name: &str) -> Option<Person> {
        self.shared.store.find_person(name).await.expect("a store").map(|found| found.person)
    }

    pub async fn visitor_as(&self, account: &str, name: &str, role: Role) -> Visitor {
        let person = self.person(account, name, role).await;
        let answer = self.call("POST", &self.link(&person).await, &[], "").await;
        assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio"));
        let cookie = set_cookie(&answer).to_owned();
        Visitor { service: self.clone(), account: person.account_id, person, cookie }
    }
}

impl Visitor {
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
        let fields = [fields, &[("proof", proof)]].concat();
        self.service.post_form(path, &fields, &[&[("cookie", self.cookie.as_str())], headers].concat()).await
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

    /// Sends the form of the first page for one square picture, unless `more` fields say otherwise: the last one counts.
    pub async fn submit(&self, prompt: &str, more: &[(&str, &str)]) -> Answer {
        self.send("/studio/tasks", &[&[("prompt", prompt), ("shape", "1:1"), ("n", "1")], more].concat()).await
    }

    pub async fn create(&self, prompt: &str) -> Id {
        self.create_with(prompt, &[]).await
    }

    pub async fn create_with(&self, prompt: &str, more: &[(&str, &str)]) -> Id {
        let answer = self.submit(prompt, more).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{answer:?}");
        self.newest_task().await.expect("a task")
    }

    /// The task of a prompt, after the worker has done it.
    pub async fn finished(&self, prompt: &str) -> Id {
        let task = self.create(prompt).await;
        self.service.work().await;
        task
    }

    /// The newest task of the account in the studio.
    pub async fn newest_task(&self) -> Option<Id> {
        let tasks = self.service.shared.store.list_tasks(self.account, Surface::Web, None, 1).await.expect("a store");
        tasks.first().map(|task| task.id)
    }

    pub async fn status(&self, task: Id) -> Status {
        let found = self.service.shared.store.find_task(self.account, Surface::Web, task).await.expect("a store");
        found.expect("a task").status
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
