//! The check for ambiguous request headers, which runs as the bytes arrive.

use tintype::http::HeadCheck;

/// The verdict does not depend on how the network splits the bytes. A header without a bare line feed, with at most one
/// length field, no other coding than chunks and no fragment in its URL passes. Accepted inputs are complete,
/// unambiguous headers.
pub fn head(data: &[u8]) -> bool {
    let Some((cut, bytes)) = data.split_first() else { return false };
    let refused = HeadCheck::default().is_ambiguous_with(bytes);
    let mut check = HeadCheck::default();
    let mut pieces = bytes.chunks(usize::from(*cut).max(1));
    let refused_in_pieces = pieces.any(|piece| check.is_ambiguous_with(piece));
    assert_eq!(refused_in_pieces, refused, "in pieces of {cut}");

    let begin = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let text = String::from_utf8_lossy(&bytes[begin..]).to_ascii_lowercase();
    let Some((header, _)) = text.split_once("\r\n\r\n") else { return false };
    let bare = header.replace("\r\n", "").contains('\n');
    let named = |name: &str| header.split("\r\n").filter(|line| line.trim_start().starts_with(name)).count();
    let lengths = named("content-length") + named("transfer-encoding");
    assert!(!bare || refused, "a bare line feed");
    let chunked = |line: &&str| line.split_once(':').is_some_and(|(_, coding)| coding.trim() == "chunked");
    let coded = || header.split("\r\n").filter(|line| line.trim_start().starts_with("transfer-encoding"));
    let other_coding = coded().any(|line| !chunked(&line));
    let has_fragment = header.split("\r\n").next().is_some_and(|line| line.contains('#'));
    assert!(!has_fragment || refused, "a fragment");
    assert!(bare || lengths > 1 || other_coding || has_fragment || !refused, "one reading");
    let plainly = |name: &str| header.matches(&format!("\r\n{name}:")).count();
    assert!(plainly("content-length") + plainly("transfer-encoding") < 2 || refused, "two readings");
    !refused
}
