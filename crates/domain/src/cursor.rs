//! Cursors of lists: opaque to callers and bound to an account.

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

crate::opaque_debug!(CursorSigner);

impl CursorSigner {
    /// Creates a signer with the secret of `Store::cursor_secret`.
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

    /// The cursor for the page of ledger entries after `last`. It hides the number, which counts the entries of all
    /// accounts: the tag of the number is the key of a pad over it.
    pub fn seal_entry(&self, account_id: Id, last: i64) -> String {
        let tag: [u8; TAG_LEN] = self.entry_mac(account_id, b"tag", &last.to_be_bytes());
        BASE64_URL_SAFE_NO_PAD.encode([&tag[..], &self.padded(account_id, &tag, last).to_be_bytes()].concat())
    }

    /// The number of the entry at which the page ended; `None` if the cursor was not issued to this account.
    pub fn open_entry(&self, account_id: Id, cursor: &str) -> Option<i64> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (tag, padded) = bytes.split_first_chunk::<TAG_LEN>()?;
        let last = self.padded(account_id, tag, i64::from_be_bytes(padded.try_into().ok()?));
        (self.seal_entry(account_id, last) == cursor).then_some(last)
    }

    fn padded(&self, account_id: Id, tag: &[u8], number: i64) -> i64 {
        number ^ i64::from_be_bytes(self.entry_mac(account_id, b"pad", tag))
    }

    fn entry_mac<const N: usize>(&self, account_id: Id, purpose: &[u8; 3], of: &[u8]) -> [u8; N] {
        let mut mac = self.0.clone();
        [b"ledger ", &purpose[..], account_id.as_str().as_bytes(), of].into_iter().for_each(|part| mac.update(part));
        let bytes = mac.finalize().into_bytes();
        std::array::from_fn(|index| bytes[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::IdSource;
    use crate::timestamp::Timestamp;

    #[test]
    fn a_cursor_of_the_ledger_hides_its_number_and_is_for_one_account() {
        let (ids, now) = (IdSource::default(), Timestamp::from_millis(1_795_262_400_000));
        let (ada, bob) = (ids.next(now), ids.next(now));
        let signer = CursorSigner::new(&[7; 32]);
        let cursors = [0, 1, 2, i64::MAX].map(|number| (number, signer.seal_entry(ada, number)));
        for (number, cursor) in &cursors {
            assert_eq!(signer.open_entry(ada, cursor), Some(*number));
            assert_eq!(signer.open_entry(bob, cursor), None);
            assert_eq!(CursorSigner::new(&[8; 32]).open_entry(ada, cursor), None);
        }
        let last = |at: usize| BASE64_URL_SAFE_NO_PAD.decode(&cursors[at].1).expect("base64").split_off(TAG_LEN);
        assert_ne!(last(0)[..7], last(1)[..7], "neighbours look nothing alike");
        for foreign in ["", "1", "AAAA", &"A".repeat(27), &signer.sign(ada, bob)] {
            assert_eq!(signer.open_entry(ada, foreign), None, "{foreign}");
        }
    }
}
