//! `tintype person`: the people of an account, who use the studio.

use std::io::{self, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use console::Term;
use serde::Serialize;

use super::owners::{AccountFilterArgs, owner_name};
use super::printing::{JsonArgs, quoted, show, show_once};
use super::values::role;
use super::{Failure, Outcome, find_account, table};
use crate::service::people::People;
use tintype_config::{StudioUrl, secret_in};
use tintype_domain::key::{ApiKey, KeyState, Suspension};
use tintype_domain::model::Account;
use tintype_domain::names::new_person_name;
use tintype_domain::passwords::{MAX_PASSWORD_BYTES, check_password};
use tintype_domain::person::{Person, Role, person_name};
use tintype_domain::text::MAX_NAME_CHARS;
use tintype_domain::timestamp::Timestamp;
use tintype_store::{PersonAdded, PersonChange, Store};
use tintype_system::output;

/// The path of sign-in links; the token follows.
const LINK_PATH: &str = "/studio/sign-in/";

#[derive(Debug, Subcommand)]
pub(super) enum PersonCommand {
    /// Add a person, who signs in with a link or a password
    Add(AddArgs),
    /// List people
    List(AccountFilterArgs),
    /// Print a one-time sign-in link for a person
    Link(LinkArgs),
    /// Give a person another role: viewer, member or owner
    Role(RoleArgs),
    /// Set a password, read from the terminal or standard input. It ends all sessions of the person
    Password(OnePersonArgs),
    /// Turn off two-factor authentication for a person who has lost the app, and end all of the person's sessions
    ResetFactor(OnePersonArgs),
    /// Lift the suspension of a person and clear the strikes under the content policy
    Lift(OnePersonArgs),
    /// Remove a person; the images stay with the account
    Remove(OnePersonArgs),
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    /// Name or email address with which the person signs in: unique, at most 100 characters
    #[arg(value_parser = new_person_name)]
    name: String,
    /// Name or id of the account
    #[arg(long, value_name = "NAME")]
    account: String,
    /// Rights of the person: viewer (sees images), member (also creates them) or owner (also manages keys and people)
    #[arg(long, default_value_t = Role::Member, value_name = "ROLE", value_parser = role(), hide_possible_values = true)]
    role: Role,
    /// File that holds the password [default: no password, sign-in by link only]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    #[arg(skip)]
    password: Option<String>,
    #[command(flatten)]
    json: JsonArgs,
}

impl AddArgs {
    /// Reads the password.
    pub(super) fn read_secrets(&mut self) -> Result<(), String> {
        self.password = self.password_file.as_deref().map(|path| secret_in(path, "--password-file")).transpose()?;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(super) struct LinkArgs {
    /// Name or id of the person
    person: String,
    #[command(flatten)]
    shown: ShownLinkArgs,
}

/// How a sign-in link is shown.
#[derive(Debug, Args)]
pub(super) struct ShownLinkArgs {
    #[command(flatten)]
    studio: StudioUrl,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct RoleArgs {
    #[command(flatten)]
    person: OnePersonArgs,
    /// The new role
    #[arg(value_parser = role())]
    role: Role,
}

#[derive(Debug, Args)]
pub(super) struct OnePersonArgs {
    /// Name or id of the person
    person: String,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct ShownPerson<'a> {
    #[serde(flatten)]
    person: &'a Person,
    account: String,
}

#[derive(Debug, Serialize)]
struct ShownLink {
    url: String,
    expires_at: Timestamp,
}

pub(super) async fn run(command: PersonCommand, store: &Arc<Store>) -> Outcome {
    match command {
        PersonCommand::Add(args) => add(args, store).await,
        PersonCommand::List(args) => list(args, store).await,
        PersonCommand::Link(args) => {
            let person = find_person(store, &args.person).await?;
            show_link(store, &person, "", args.shown).await
        }
        PersonCommand::Role(RoleArgs { person, role }) => change(person, PersonChange::Role(role), store).await,
        PersonCommand::Password(args) => set_password(args, store).await,
        PersonCommand::ResetFactor(args) => reset_factor(args, store).await,
        PersonCommand::Lift(args) => change(args, PersonChange::Lift, store).await,
        PersonCommand::Remove(args) => remove(args, store).await,
    }
}

async fn add(args: AddArgs, store: &Arc<Store>) -> Outcome {
    let account = find_account(store, &args.account).await?;
    // Before anything is written.
    let password = args.password;
    let names = [args.name.as_str(), &account.name];
    password.as_deref().map(|password| check_password(password, &names)).transpose()?;
    let people = People::new(store.clone());
    let name = people.known_as(args.name.clone()).await?;
    let person = created(store.create_person(account.id, &name, args.role).await?, &account, &name)?;
    if let Some(password) = password {
        people.set_password(&person, password).await??;
    }
    let person = find_person(store, &args.name).await?;
    show_person(store, args.json, &person, || {
        let (name, role, account) = (&person.name, person.role, &account.name);
        let link = || format!("\nSign-in link: tintype person link {}", quoted(name));
        let next = if person.has_password { String::new() } else { link() };
        format!("Added {name} to the account {account} as {role}.{next}")
    })
    .await
}

fn created(added: PersonAdded, account: &Account, name: &str) -> Result<Person, Failure> {
    match added {
        PersonAdded::Done(person) => Ok(person),
        PersonAdded::NameTaken => Err(Failure(format!("a person named {name:?} already exists"))),
        _ => Err(Failure(format!("the account {} takes no more people, or was deleted", account.name))),
    }
}

async fn list(args: AccountFilterArgs, store: &Store) -> Outcome {
    let owners = args.owners(store).await?;
    let people = store.list_people(owners.only).await?;
    let shown = |person| ShownPerson { person, account: owners.name(person.account_id) };
    let shown: Vec<_> = people.iter().map(shown).collect();
    show(args.json, &shown, || {
        let rows = shown.iter().map(|ShownPerson { person, account }| {
            let [password, factor] =
                [person.has_password, person.has_second_factor].map(|has| if has { "yes" } else { "no" }.to_owned());
            let state = person.suspension.as_ref().map_or_else(
                || "active".to_owned(),
                |Suspension { at, reason }| format!("suspended ({reason}; suspended at {at})"),
            );
            [person.name.clone(), account.clone(), person.role.to_string(), password, factor, state]
        });
        table(["NAME", "ACCOUNT", "ROLE", "PASSWORD", "SECOND FACTOR", "STATE"], rows)
    })
}

/// An account's first owner, who is added if there is none.
async fn owner_of(store: &Store, account: &Account) -> Result<Person, Failure> {
    let people = store.list_people(Some(account.id)).await?;
    match people.into_iter().find(|person| person.role == Role::Owner) {
        Some(owner) => Ok(owner),
        None => add_owner(store, account).await,
    }
}

/// Adds an owner under the account's name, or under that name with a number if it is taken.
async fn add_owner(store: &Store, account: &Account) -> Result<Person, Failure> {
    const MOST: usize = 99;
    // In lower case it may be too long.
    let short: String = account.name.to_lowercase().chars().take(MAX_NAME_CHARS - "-99".len()).collect();
    let numbered = (2..=MOST).map(|number| format!("{}-{number}", short.trim_end()));
    let names: Vec<String> =
        std::iter::once(account.name.clone()).chain(numbered).filter_map(|name| new_person_name(&name).ok()).collect();
    for name in names {
        match store.create_person(account.id, &name, Role::Owner).await? {
            PersonAdded::NameTaken => {}
            added => return created(added, account, &name),
        }
    }
    Err(Failure(format!(
        "all names like {0:?} are taken; add an owner with `tintype person add NAME --account {1} --role owner`",
        account.name, account.id
    )))
}

/// A link that signs a person in once, at the public URL of the studio, and the time of its end.
async fn link_of(store: &Arc<Store>, person: &Person, public_url: &str) -> Result<(String, Timestamp), Failure> {
    let (token, expires_at) = People::new(store.clone()).link(person).await?.ok_or("the person was just removed")?;
    Ok((format!("{public_url}{LINK_PATH}{}", token.reveal()), expires_at))
}

pub(super) async fn link_of_account(
    store: &Arc<Store>,
    account: &Account,
    public_url: &str,
) -> Result<(String, Timestamp), Failure> {
    let owner = owner_of(store, account).await?;
    link_of(store, &owner, public_url).await
}

pub(super) async fn show_link_of_account(store: &Arc<Store>, account: &Account, shown: ShownLinkArgs) -> Outcome {
    let owner = owner_of(store, account).await?;
    let is_named_after = person_name(&account.name).is_ok_and(|name| name == owner.name);
    let whose = if is_named_after { String::new() } else { format!(", an owner of the account {}", account.name) };
    show_link(store, &owner, &whose, shown).await
}

/// Shows a link of a person, whom `whose` describes further.
async fn show_link(store: &Arc<Store>, person: &Person, whose: &str, shown: ShownLinkArgs) -> Outcome {
    let (url, expires_at) = link_of(store, person, &shown.studio.url()?).await?;
    let note = format!("One-time sign-in link for {}{whose}, valid until {expires_at}.", person.name);
    let unprinted = "the link could not be printed, so repeat this for another one";
    show_once(shown.json, &ShownLink { url: url.clone(), expires_at }, (&url, &note), unprinted)
}

async fn change(args: OnePersonArgs, change: PersonChange, store: &Store) -> Outcome {
    let before = find_person(store, &args.person).await?;
    let is_lift = matches!(change, PersonChange::Lift);
    let person = store.change_person(before.id, change).await?.ok_or("the person was just removed")?;
    let mut hint = owner_hint(store, &before).await;
    if person.role != Role::Owner {
        hint += &keys_hint(store, &person).await;
    }
    show_person(store, args.json, &person, || match is_lift {
        true => format!("{} has no strikes and is not suspended.", person.name),
        false => format!("{} now has the role {}.{hint}", person.name, person.role),
    })
    .await
}

async fn reset_factor(args: OnePersonArgs, store: &Store) -> Outcome {
    let person = find_person(store, &args.person).await?;
    let removed = store.reset_factor(person.id).await?;
    let person = find_person(store, person.id.as_str()).await?;
    show_person(store, args.json, &person, || match removed {
        true => format!("{} signs in without two-factor authentication now; all sessions have ended.", person.name),
        false => format!("{} has no two-factor authentication. Nothing was changed.", person.name),
    })
    .await
}

async fn set_password(args: OnePersonArgs, store: &Arc<Store>) -> Outcome {
    let person = find_person(store, &args.person).await?;
    let password = typed_password()?;
    let changed = People::new(store.clone()).set_password(&person, password).await??;
    let person = changed.ok_or("the person was just removed")?;
    show_person(store, args.json, &person, || {
        format!("The password of {} is set; all sessions have ended.", person.name)
    })
    .await
}

/// A password from the terminal, which does not show it, or the first line of standard input.
fn typed_password() -> Result<String, Failure> {
    if io::stdin().is_terminal() {
        output::ask("New password: ");
        let password = Term::stderr().read_secure_line()?;
        output::ask("Repeat the new password: ");
        return match Term::stderr().read_secure_line()? == password {
            true => Ok(password),
            false => Err("the passwords do not match; nothing was changed".into()),
        };
    }
    let mut text = String::new();
    io::stdin().take(MAX_PASSWORD_BYTES as u64 + 2).read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

async fn remove(args: OnePersonArgs, store: &Store) -> Outcome {
    let person = find_person(store, &args.person).await?;
    store.remove_person(person.id).await?;
    let hint = owner_hint(store, &person).await + &keys_hint(store, &person).await;
    show_person(store, args.json, &person, || format!("Removed {}; all sessions have ended.{hint}", person.name)).await
}

/// What follows if the account of this person, as it was before a change, has lost its last owner.
async fn owner_hint(store: &Store, before: &Person) -> String {
    let Ok(people) = store.list_people(Some(before.account_id)).await else { return String::new() };
    let hint = if before.role != Role::Owner || people.iter().any(|person| person.role == Role::Owner) {
        ""
    } else if people.is_empty() {
        "\nNobody is left in the account: tintype person add NAME --role owner adds an owner."
    } else {
        "\nThe account has no owner now: tintype person role NAME owner makes one."
    };
    hint.to_owned()
}

/// The working keys that someone made who is no longer an owner. They belong to the account, but this person may still
/// have them.
async fn keys_hint(store: &Store, person: &Person) -> String {
    let Ok(keys) = store.list_keys(Some(person.account_id)).await else { return String::new() };
    let now = store.now();
    let works = |key: &&ApiKey| key.made_by == Some(person.id) && key.state(now) == KeyState::Active;
    let ids: Vec<&str> = keys.iter().filter(works).map(|key| key.id.as_str()).collect();
    if ids.is_empty() {
        return String::new();
    }
    format!("\nKeys that {} made still work: {}. tintype key revoke ID revokes one.", person.name, ids.join(", "))
}

async fn show_person(store: &Store, json: JsonArgs, person: &Person, text: impl FnOnce() -> String) -> Outcome {
    show(json, &ShownPerson { person, account: owner_name(store, person.account_id).await }, text)
}

async fn find_person(store: &Store, name_or_id: &str) -> Result<Person, Failure> {
    let mut found = store.find_person(name_or_id).await?;
    if found.is_none() {
        found = store.find_person(&person_name(name_or_id).unwrap_or_default()).await?;
    }
    let found = found.map(|candidate| candidate.person);
    found.ok_or_else(|| Failure(format!("there is no person {name_or_id:?}: `tintype person list` shows all people")))
}
