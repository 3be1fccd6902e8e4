//! Indoors: a room with a window, and a table for still lives.

use super::colour::{Colour, hex};
use super::dice::smooth;
use super::setting::{Set, Stage, Surface};

/// Wall colours that go with wood.
const WALLS: [Colour; 6] = [hex(0xd9c7a8), hex(0x9fb8b0), hex(0xc79a86), hex(0x8ea3c0), hex(0xd8b4a0), hex(0xa8b48a)];

/// A room: wall, wooden floor, and a window onto the weather outside.
pub fn room(mut set: Set<'_>) -> Stage {
    let (width, height, unit) = (set.canvas.width as f32, set.canvas.height as f32, set.canvas.scale());
    let floor = height * set.dice.range(0.64, 0.72);
    let window = (width * set.dice.range(0.2, 0.8), floor * set.dice.range(0.36, 0.44));
    wall(&mut set, floor, window);
    let size = (unit * set.dice.range(0.17, 0.22), unit * set.dice.range(0.19, 0.24));
    glazing(&mut set, window, size);
    frame(&mut set, window, floor);
    boards(&mut set, floor);
    let skirting = set.light.lit(hex(0xefe6d8)) * 0.9;
    for y in (floor - unit * 0.022) as i32..floor as i32 {
        set.canvas.span_at(y, 0.0, width, skirting, 0.9);
    }
    rug(&mut set, floor);
    patch_of_light(&mut set, window.0, floor, size.0);
    let standing = (floor + (height - floor) * 0.25, height * 0.93);
    Stage { horizon: floor, standing, surface: Surface::Hard, scale: 1.1 }
}

fn wall(set: &mut Set<'_>, floor: f32, window: (f32, f32)) {
    let paint =
        set.scene.place_tint.or(set.scene.colours.first().copied()).map(|tint| tint.colour().mix(hex(0xd9c7a8), 0.35));
    let base = paint.unwrap_or(WALLS[set.dice.index(WALLS.len())]);
    let base = if set.light.is_dark { base.under(hex(0x9a7f8a)) } else { set.light.lit(base) };
    let unit = set.canvas.scale();
    let stripes = set.dice.chance(0.4);
    for y in 0..(floor.max(0.0) as usize).min(set.canvas.height) {
        for (x, pixel) in set.canvas.row_mut(y).iter_mut().enumerate() {
            let (dx, dy) = ((x as f32 - window.0) / unit, (y as f32 - window.1) / unit);
            let shade = 1.08 - (dx * dx + dy * dy).sqrt() * 0.36;
            let stripe = if stripes && (x as f32 / unit * 14.0) as i32 % 2 == 0 { 0.965 } else { 1.0 };
            let plaster = 1.0 + (set.noise.fractal(x as f32 * 0.02, y as f32 * 0.02, 3) - 0.5) * 0.07;
            *pixel = base * (shade * stripe * plaster);
        }
    }
}

/// The view out of the window: sky and a hill.
fn glazing(set: &mut Set<'_>, (cx, cy): (f32, f32), (half_width, half_height): (f32, f32)) {
    let [top, middle, bottom] = set.light.sky;
    let frame = set.light.shaded(hex(0xf3ede2)).mix(hex(0xf3ede2), 0.5);
    let bar = half_width * 0.07;
    for y in (cy - half_height - bar) as i32..(cy + half_height + bar) as i32 {
        set.canvas.span_at(y, cx - half_width - bar, cx + half_width + bar, frame, 1.0);
    }
    let hill = set.light.faded(set.light.lit(hex(0x5f9048)), 0.4);
    for y in (cy - half_height) as i32..(cy + half_height) as i32 {
        let t = (y as f32 - cy + half_height) / (2.0 * half_height);
        let sky = top.mix(middle, smooth(0.0, 0.5, t)).mix(bottom, smooth(0.4, 0.9, t));
        for x in (cx - half_width) as i32..(cx + half_width) as i32 {
            let u = (x as f32 - cx) / half_width;
            let crest = 0.72 + (set.noise.at(u * 1.7 + 9.0, 4.0) - 0.5) * 0.3;
            let cloud = smooth(0.52, 0.75, set.noise.fractal(u * 2.2 + 30.0, t * 4.0, 4)) * 0.6;
            let view = if t > crest { hill } else { sky.mix(hex(0xffffff).mix(bottom, 0.4), cloud * 0.7) };
            set.canvas.blend(x, y, view, 1.0);
        }
    }
    if set.light.is_dark {
        let moon = (cx + half_width * 0.4, cy - half_height * 0.45);
        set.canvas.glow(moon, half_width * 0.6, hex(0xcfdcff), 0.6);
        set.canvas.ellipse(moon, (half_width * 0.13, half_width * 0.13), hex(0xf5f2e4), 1.0, 0.1);
    }
    for y in (cy - half_height) as i32..(cy + half_height) as i32 {
        set.canvas.span_at(y, cx - bar * 0.4, cx + bar * 0.4, frame, 1.0);
        if (y as f32 - cy).abs() < bar * 0.4 {
            set.canvas.span_at(y, cx - half_width, cx + half_width, frame, 1.0);
        }
    }
    for row in 0..(bar * 1.5) as i32 {
        let y = (cy + half_height + bar) as i32 + row;
        set.canvas.span_at(y, cx - half_width * 1.16, cx + half_width * 1.16, frame * 0.88, 1.0);
    }
}

/// A picture on the wall, away from the window.
fn frame(set: &mut Set<'_>, window: (f32, f32), floor: f32) {
    let (width, unit) = (set.canvas.width as f32, set.canvas.scale());
    let x =
        if window.0 < width * 0.5 { width * set.dice.range(0.74, 0.88) } else { width * set.dice.range(0.12, 0.26) };
    let (half_width, half_height) = (unit * set.dice.range(0.05, 0.08), unit * set.dice.range(0.06, 0.09));
    let y = floor * 0.4;
    let hue = set.dice.unit();
    let wood = set.light.shaded(hex(0x6b4528));
    for row in -(half_height * 1.15) as i32..(half_height * 1.15) as i32 {
        set.canvas.span_at(y as i32 + row, x - half_width * 1.18, x + half_width * 1.18, wood, 1.0);
    }
    for row in -(half_height as i32)..half_height as i32 {
        let t = row as f32 / half_height;
        let wash = set.light.lit(Colour::hsl(hue + t * 0.08, 0.35, 0.62 - 0.16 * t));
        set.canvas.span_at(y as i32 + row, x - half_width, x + half_width, wash, 1.0);
    }
}

/// Floor boards that run towards the viewer.
fn boards(set: &mut Set<'_>, floor: f32) {
    let (width, height) = (set.canvas.width as f32, set.canvas.height as f32);
    let wood = if set.light.is_dark { hex(0x6a4a38).under(hex(0xb09aa0)) } else { set.light.lit(hex(0xb9834f)) };
    for y in floor.max(0.0) as usize..set.canvas.height {
        let t = (y as f32 - floor) / (height - floor);
        let spread = 0.55 + 0.75 * t;
        for (x, pixel) in set.canvas.row_mut(y).iter_mut().enumerate() {
            let lane = (x as f32 - width * 0.5) / width / spread * 11.0;
            let board = lane.floor();
            let edge = (lane - board).min(1.0 - (lane - board));
            let tone =
                set.noise.cell(board as i32, 3) * 0.22 + set.noise.at(lane * 9.0, board * 7.0 + 4.0 / (t + 0.2)) * 0.14;
            *pixel = wood * ((0.74 + tone + 0.12 * t) * smooth(0.0, 0.035, edge).max(0.68));
        }
    }
}

fn rug(set: &mut Set<'_>, floor: f32) {
    let (width, height) = (set.canvas.width as f32, set.canvas.height as f32);
    let depth = height - floor;
    let hue = Colour::hsl(set.dice.unit(), 0.42, 0.42);
    let dye = if set.light.is_dark { hue.under(hex(0xa090a8)) } else { set.light.lit(hue) };
    let centre = (width * set.dice.range(0.42, 0.58), floor + depth * 0.6);
    let radii = (width.min(height * 1.3) * 0.38, depth * 0.34);
    for (scale, tone) in [(1.0, 0.8), (0.93, 1.25), (0.86, 1.0), (0.6, 1.18), (0.54, 1.0)] {
        set.canvas.ellipse(centre, (radii.0 * scale, radii.1 * scale), dye * tone, 0.95, 0.02);
    }
}

/// Daylight, or the moon's, thrown on the floor by the window.
fn patch_of_light(set: &mut Set<'_>, window: f32, floor: f32, half_width: f32) {
    let height = set.canvas.height as f32;
    let slant = if set.light.across < 0.5 { 1.1 } else { -1.1 };
    let strength = if set.light.is_dark { 0.1 } else { 0.2 };
    for y in floor as usize..set.canvas.height {
        let t = (y as f32 - floor) / (height - floor);
        let fade = strength * smooth(0.02, 0.15, t) * (1.0 - smooth(0.6, 0.95, t));
        let centre = window + slant * t * half_width * 2.4;
        let half = half_width * (1.0 + 0.5 * t);
        let light = set.light.direct.mix(hex(0xffffff), 0.4);
        set.canvas.span_at(y as i32, centre - half, centre - half * 0.06, light, fade);
        set.canvas.span_at(y as i32, centre + half * 0.06, centre + half, light, fade);
    }
}

/// A table top before a soft, dark backdrop.
pub fn table(mut set: Set<'_>) -> Stage {
    let (width, height) = (set.canvas.width as f32, set.canvas.height as f32);
    let edge = height * set.dice.range(0.56, 0.64);
    let tint = set.scene.place_tint.or(set.scene.colours.first().copied());
    let backdrop = tint.map_or_else(
        || [hex(0x6f7f78), hex(0x8a6f5f), hex(0x5f7488), hex(0x9a8a6a), hex(0x7a5f70)][set.dice.index(5)],
        |tint| tint.colour().mix(hex(0x6f6a64), 0.3),
    );
    let backdrop = if set.light.is_dark { backdrop * 0.5 } else { set.light.lit(backdrop) };
    let lamp = (set.light.across * width, height * 0.2);
    for y in 0..(edge as usize).min(set.canvas.height) {
        for (x, pixel) in set.canvas.row_mut(y).iter_mut().enumerate() {
            let (dx, dy) = ((x as f32 - lamp.0) / width, (y as f32 - lamp.1) / height);
            let mottle = set.noise.fractal(x as f32 / width * 4.0, y as f32 / height * 4.0 + 20.0, 4) - 0.5;
            *pixel = backdrop * (1.3 - (dx * dx + dy * dy).sqrt() * 1.05 + mottle * 0.22);
        }
    }
    let wood = [hex(0x9a6238), hex(0xb98a5a), hex(0x7a4a30)][set.dice.index(3)];
    let wood = if set.light.is_dark { wood * 0.55 } else { set.light.lit(wood) };
    for y in edge as usize..set.canvas.height {
        let t = (y as f32 - edge) / (height - edge);
        let plank = 1.0 / (t + 0.3) * 5.0;
        let seam = (plank - plank.floor()).min(1.0 - (plank - plank.floor()));
        for (x, pixel) in set.canvas.row_mut(y).iter_mut().enumerate() {
            let u = x as f32 / width;
            let grain = set.noise.at(u * 5.0 + plank.floor() * 31.0, plank * 11.0) * 0.5
                + set.noise.at(u * 11.0 + plank.floor() * 17.0, plank * 40.0) * 0.5;
            let side = 1.1 - (u - set.light.across).abs() * 0.35;
            let tone = 0.72 + 0.34 * grain + 0.1 * t;
            *pixel = wood * (tone * side * smooth(0.0, 0.03, seam).max(0.72));
        }
    }
    let depth = height - edge;
    Stage { horizon: edge, standing: (edge + depth * 0.22, edge + depth * 0.78), surface: Surface::Hard, scale: 1.3 }
}
