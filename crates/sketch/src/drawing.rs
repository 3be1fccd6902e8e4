//! Drawings of things that have no emoji, in the same 36 x 36 coordinate space.

use super::vocabulary::named;

named! {
    /// A thing that is drawn here instead of taken from an emoji.
    Drawing {
        Lighthouse,
        Balloon,
        Windmill,
        Barn,
        Cabin,
        Bridge,
        Knight,
        Lantern,
        Pyramid,
        Submarine,
        Ship,
        Gull,
    }
}

impl Drawing {
    /// SVG elements of the drawing.
    pub fn elements(self) -> &'static str {
        match self {
            Self::Lighthouse => LIGHTHOUSE,
            Self::Balloon => BALLOON,
            Self::Windmill => WINDMILL,
            Self::Barn => BARN,
            Self::Cabin => CABIN,
            Self::Bridge => BRIDGE,
            Self::Knight => KNIGHT,
            Self::Lantern => LANTERN,
            Self::Pyramid => PYRAMID,
            Self::Submarine => SUBMARINE,
            Self::Ship => SHIP,
            Self::Gull => GULL,
        }
    }
}

const LIGHTHOUSE: &str = r##"
<path fill="#6b5b50" d="M6 36q2-5 7-5h10q6 0 8 5z"/>
<path fill="#f4f1ea" d="M14.2 11h7.6l2.2 21H12z"/>
<path fill="#d0342c" d="M13.7 16h8.6l.5 5h-9.6zM12.7 26h10.6l.5 5H12.200z"/>
<path fill="#00000022" d="M19.500 11h2.300L24 32h-3.500z"/>
<path fill="#39424e" d="M12.500 9.500h11V11.500h-11z"/><path fill="#ffe680" d="M14.800 5h6.400v4.500h-6.400z"/>
<path fill="#39424e" d="M17.500 5h1v4.500h-1z"/><path fill="#d0342c" d="M13.800 5q1-3.500 4.200-4.500 3.200 1 4.200 4.500z"/>
<path fill="#39424e" d="M16.500 29q0-3 1.500-3t1.500 3v3h-3z"/>"##;

const BALLOON: &str = r##"
<path fill="#e24b3b" d="M18 0C9 0 4.500 6 4.500 12.500 4.500 19 12 24 14.500 28h7c2.500-4 10-9 10-15.500C31.500 6 27 0 18 0z"/>
<path fill="#f7c94b" d="M18 0c-5 0-7.500 6-7.500 12.500 0 6.500 3.500 11.500 5 15.500h5c1.500-4 5-9 5-15.500C25.500 6 23 0 18 0z"/>
<path fill="#3d7fc1" d="M18 0c-1.800 0-2.700 6-2.700 12.500S16.500 24 17 28h2c.5-4 1.700-9 1.700-15.500S19.800 0 18 0z"/>
<path stroke="#5a4632" stroke-width=".5" d="M14.800 28l.7 4M21.200 28l-.7 4"/>
<rect x="14.800" y="31.500" width="6.400" height="4.500" rx="1" fill="#8a5a2b"/>"##;

const WINDMILL: &str = r##"
<path fill="#efe6d6" d="M13.500 14h9L26 36H10z"/><path fill="#0000001c" d="M19.500 14h3L26 36h-5z"/>
<path fill="#8c3b2a" d="M12.500 14.500q1-6 5.500-6.500 4.500.5 5.500 6.500z"/>
<path fill="#6b4a32" d="M16 31q0-3.500 2-3.500t2 3.500v5h-4zM16.800 19h2.400v3h-2.400z"/>
<g transform="rotate(22 18 12.500)"><path fill="#6b4a32" d="M17.500 0h1v25h-1zM5.500 12h25v1h-25z"/>
<path fill="#f7f2e8" d="M18.500.5h3v10h-3zM14.500 14.500h3v10h-3zM6 9h10v3H6zM20 13h10v3H20z"/></g>
<circle cx="18" cy="12.500" r="1.300" fill="#3b2a20"/>"##;

const BARN: &str = r##"
<path fill="#b5352b" d="M4 18L9 9l9-5 9 5 5 9v18H4z"/>
<path fill="#5b4a44" d="M2.500 18.500L8 8l10-6 10 6 5.500 10.500-2 1L27 10l-9-5.300L9 10l-4.500 9.500z"/>
<path fill="#f3ece2" d="M12 23h12v13H12zM15.500 11h5v5h-5z"/><path fill="#9b2a22" d="M13 24h4.500v12H13zM18.500 24H23v12h-4.500z"/>
<path stroke="#f3ece2" stroke-width=".8" d="M13 24l4.500 12M23 24l-4.500 12"/>"##;

const CABIN: &str = r##"
<path fill="#8a5a34" d="M5 18h26v18H5z"/><path stroke="#6b4325" stroke-width=".8" d="M5 21h26M5 24h26M5 27h26M5 30h26M5 33h26"/>
<path fill="#5a3a26" d="M24 5h4v9h-4z"/><path fill="#4d3426" d="M1.500 19.500L18 6l16.500 13.500-1.500 1.800L18 9.500 3 21.300z"/>
<path fill="#6f4a2e" d="M7 18L18 9.300 29 18z"/><path fill="#4d3426" d="M20 25h6v11h-6z"/>
<path fill="#ffd76b" d="M9 23.500h7v6H9z"/><path fill="#4d3426" d="M12.200 23.500h.7v6h-.7zM9 26.200h7v.7H9z"/>"##;

const BRIDGE: &str = r##"
<path fill="#a39481" d="M0 19q18-9 36 0v13h-4q0-8-7-8t-7 8h0q0-8-7-8t-7 8H0z"/>
<path fill="#85776a" d="M0 18q18-9 36 0v2.600q-18-9-36 0z"/>
<path fill="#00000022" d="M4 32q0-8 7-8t7 8h-1.200q0-6.800-5.800-6.800T5.200 32zM18 32q0-8 7-8t7 8h-1.200q0-6.800-5.800-6.800T19.200 32z"/>"##;

const KNIGHT: &str = r##"
<path fill="#7d8894" d="M13 27h4v9h-5zM19 27h4l1 9h-5z"/><path fill="#aab4be" d="M11 14h14l1.500 14h-17z"/>
<path fill="#b5352b" d="M14 15h8v14h-8z"/><path fill="#f1c75b" d="M17.300 17h1.400v3h2.600v1.400h-2.600V26h-1.400v-4.600h-2.600V20h2.600z"/>
<path fill="#8b96a1" d="M8 14.500q3-1.500 4 0L11 26H7.500zM28 14.500q-3-1.500-4 0L25 26h3.500z"/>
<path fill="#c3ccd4" d="M12.500 13V7q0-5 5.500-5t5.500 5v6q-5.500 3-11 0z"/><path fill="#2b3138" d="M13.500 7.500h9v1.800h-9z"/>
<path fill="#d0342c" d="M17 2q0-2.500 5-2-2 1.500-3 2.500z"/><path fill="#dfe5ea" d="M29 4h1.500v20H29z"/>
<path fill="#8a6a2f" d="M27 23.500h5.500V25H27z"/><path fill="#3d5fa8" d="M3 16h7.500v6q0 5-3.750 7Q3 27 3 22z"/>"##;

const LANTERN: &str = r##"
<path fill="#2f3640" d="M17.200 12h1.600v22h-1.600zM14 34h8v2h-8z"/><path fill="#2f3640" d="M13.500 3.500L18 0l4.500 3.500z"/>
<path fill="#ffe08a" d="M14 3.500h8L20.800 12h-5.600z"/><path stroke="#2f3640" stroke-width=".6" fill="none" d="M14 3.500h8L20.800 12h-5.600zM18 3.500V12"/>"##;

const PYRAMID: &str = r##"
<path fill="#d9b36a" d="M18 8L0 36h36z"/><path fill="#b68e4a" d="M18 8l5 28h13z"/>
<path stroke="#a27d3f" stroke-width=".35" d="M13.500 15h6M10.300 20h10M7 25h14M3.800 30h18.300"/>"##;

const SUBMARINE: &str = r##"
<path fill="#f1b72e" d="M2 23q0-8 14-8h6q12 0 12 8t-12 8h-6Q2 31 2 23z"/><path fill="#00000020" d="M2 24q2 7 14 7h6q12 0 12-7z"/>
<path fill="#e0a21f" d="M13 10h9l1 6H12z"/><path fill="#5b6570" d="M16.500 4h5v1.500H18V10h-1.500zM33 18l3-2v14l-3-2z"/>
<g fill="#bfe6f5" stroke="#5b6570" stroke-width="1"><circle cx="11" cy="22" r="2.200"/><circle cx="18" cy="22" r="2.200"/><circle cx="25" cy="22" r="2.200"/></g>"##;

const SHIP: &str = r##"
<path fill="#4a3020" d="M9.500 2h1v25h-1zM19.500 0h1v27h-1zM28 6h.9v21H28z"/>
<path fill="#f2e9d8" d="M4.500 5h10.500q2 4 0 9H4.500q2-4.500 0-9zM13.500 3h13q2.500 5 0 10h-13q2.500-5 0-10zM14 15h12.500q2 4 0 8H14q2-4 0-8zM24 9h8.500q1.800 5 0 10H24q1.800-5 0-10zM5 16h9.500q1.500 3.500 0 7H5q1.500-3.500 0-7z"/>
<path fill="#2b2b30" d="M20.500 0h5l-1.500 1.500 1.500 1.500h-5z"/>
<path fill="#7a4a2a" d="M0 23l6 2.500h22L36 22q-1 9-6 12H8Q3 31 0 23z"/><path fill="#5c3620" d="M4.500 30h28q-1 2.500-2.500 4H8q-2-1.500-3.500-4z"/>
<g fill="#2b1b12"><path d="M10 27.500h2v2h-2zM15 27.500h2v2h-2zM20 27.500h2v2h-2zM25 27.500h2v2h-2z"/></g>"##;

const GULL: &str = r##"
<path fill="#5d6673" d="M1 9q6-4 11 1 3 3 5 6-2 3-4 3Q8 12 1 9z"/><path fill="#707a88" d="M35 6q-7-2-12 4-3 4-5 6 2 3 4 2 4-8 13-12z"/>
<path fill="#4d5561" d="M10 22q3-5 8-6 5 0 8 2l4 .500-3 2q-4 5-10 4.500l-8 2.500z"/>"##;
