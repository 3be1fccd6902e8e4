//! Cursors of task lists: opaque to callers and bound to an account.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::model::Id;

const ID_LEN: usize = 21;
const TAG_LEN: usize = 12;

/// Signs and verifies cursors with the secret of the installation.
#[derive(Clone)]
pub struct CursorSigner(Hmac<Sha256>);

impl std::fmt::Debug for CursorSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CursorSigner(…)")
    }
}

impl CursorSigner {
    /// Creates a signer with the secret of `Fleet::cursor_secret` of the store.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("HMAC takes keys of any length"))
    }

    fn mac(&self, account_id: Id, last: Id) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(account_id.as_str().as_bytes());
        mac.update(last.as_str().as_bytes());
        mac
    }

    /// The cursor for the page after `last`.
    pub fn sign(&self, account_id: Id, last: Id) -> String {
        let tag = self.mac(account_id, last).finalize().into_bytes();
        let mut bytes = last.as_str().as_bytes().to_vec();
        bytes.extend_from_slice(&tag[..TAG_LEN]);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The id at which the page ended; `None` if the cursor was not issued to this account.
    pub fn verify(&self, account_id: Id, cursor: &str) -> Option<Id> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok().filter(|bytes| bytes.len() == ID_LEN + TAG_LEN)?;
        let (id, tag) = bytes.split_at(ID_LEN);
        let last: Id = std::str::from_utf8(id).ok()?.parse().ok()?;
        self.mac(account_id, last).verify_truncated_left(tag).ok()?;
        Some(last)
    }
}
