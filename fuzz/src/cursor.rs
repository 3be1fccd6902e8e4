//! Cursors of task lists.

use tintype_domain::cursor::CursorSigner;
use tintype_domain::model::Id;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn id(text: &str) -> Id {
    text.parse().expect("an id")
}

/// A cursor is valid only for the account that it was signed for, and only on the installation that signed it.
pub fn cursor(data: &[u8]) -> bool {
    let ours = CursorSigner::new(&[7; 32]);
    let other_installation = CursorSigner::new(&[8; 32]);
    let (ada, bob) = (id("FP6zxe1ZN6I9-4YYcvkfA"), id("FP6zxe1ZN6I9-4YYcvkfB"));
    let text = String::from_utf8_lossy(data);
    let read = ours.verify(ada, &text);
    if let Some(last) = read {
        assert_eq!(ours.sign(ada, last), text);
        assert_eq!(ours.verify(bob, &text), None);
    }

    let (Some(last), Some([at, with])) = (data.get(..21), data.get(21..23)) else { return read.is_some() };
    let last: String = last.iter().map(|byte| char::from(BASE64[usize::from(byte & 63)])).collect();
    let last = id(&last);
    let signed = ours.sign(ada, last);
    assert_eq!(ours.verify(ada, &signed), Some(last));
    assert_eq!(ours.verify(bob, &signed), None);
    assert_eq!(other_installation.verify(ada, &signed), None);
    let mut forged = signed.clone().into_bytes();
    let at = usize::from(*at) % forged.len();
    forged[at] = BASE64[usize::from(with & 63)];
    let forged = String::from_utf8(forged).expect("ASCII");
    assert_eq!(ours.verify(ada, &forged), Some(last).filter(|_| forged == signed));
    assert_eq!(ours.verify(ada, &signed[..signed.len() - 1]), None);
    read.is_some()
}
