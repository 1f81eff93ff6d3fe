//! The shapes in which people write the ten digits.
//!
//! Plain data: the points that a pen passes, in a box about 12 wide and 20 high around (0, 0), with y pointing down.
//! One unit is about a pixel. How they are varied is decided elsewhere.

#[rustfmt::skip]
mod shapes;

/// A point a stroke passes through.
pub(super) type Point = (f32, f32);

/// One movement of the pen. A stroke that continues where another ended repeats that point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stroke {
    /// A smooth curve through the points.
    Curve(&'static [Point]),
    /// Straight lines with corners at the points.
    Lines(&'static [Point]),
}

impl Stroke {
    /// The points in the order they are drawn.
    pub(super) fn points(self) -> &'static [Point] {
        match self {
            Stroke::Curve(points) | Stroke::Lines(points) => points,
        }
    }
}

/// One way to write a digit.
pub(super) type Template = &'static [Stroke];

/// The maximum number of points in a template, over all strokes.
pub(super) const MOST_POINTS: usize = 24;

/// The templates of each digit, all equally likely.
pub(super) const CLASSES: [&[Template]; 10] = [
    shapes::ZERO,
    shapes::ONE,
    shapes::TWO,
    shapes::THREE,
    shapes::FOUR,
    shapes::FIVE,
    shapes::SIX,
    shapes::SEVEN,
    shapes::EIGHT,
    shapes::NINE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_fits_the_points_a_hand_has_room_for() {
        for (digit, template) in all() {
            let points: usize = template.iter().map(|stroke| stroke.points().len()).sum();
            assert!(points <= MOST_POINTS, "a template of {digit} has {points} points");
        }
    }

    #[test]
    fn every_stroke_has_a_beginning_and_an_end() {
        for (digit, template) in all() {
            for stroke in template {
                assert!(stroke.points().len() >= 2, "{digit}: {stroke:?}");
            }
        }
    }

    #[test]
    fn every_point_is_in_the_box() {
        for (digit, template) in all() {
            for (x, y) in template.iter().flat_map(|stroke| stroke.points()) {
                assert!(x.abs() <= 7.0 && y.abs() <= 10.0, "{digit}: ({x}, {y})");
            }
        }
    }

    fn all() -> impl Iterator<Item = (usize, Template)> {
        let classes = CLASSES.iter().enumerate();
        classes.flat_map(|(digit, templates)| templates.iter().map(move |template| (digit, *template)))
    }
}
