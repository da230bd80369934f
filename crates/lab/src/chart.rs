//! Curves over a logarithmic axis, drawn as SVG.

use plotters::prelude::*;

/// Width and height in pixels.
const SIZE: (u32, u32) = (800, 500);

/// Curves and marked points in one picture.
pub struct Chart {
    /// The line above the picture.
    pub title: String,
    /// What the horizontal axis shows, with its unit.
    pub x: String,
    /// What the vertical axis shows, with its unit.
    pub y: String,
    /// The curves.
    pub series: Vec<Series>,
    /// Points that are marked without a curve.
    pub marks: Vec<Series>,
}

/// A named curve.
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Its points; x is positive and ascends.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    /// Draws the chart as SVG.
    ///
    /// # Errors
    /// If there are no points, or drawing fails.
    pub fn svg(&self) -> Result<String, String> {
        let points = || {
            let all = self.series.iter().chain(&self.marks);
            all.flat_map(|one| one.points.iter().copied())
        };
        let (first, last) = points().fold((f64::MAX, 0.0_f64), |(first, last), (x, _)| {
            (first.min(x), last.max(x))
        });
        if last <= 0.0 {
            return Err("there are no points to draw".to_owned());
        }
        let (lowest, highest) = points().fold((0.0_f64, 0.0_f64), |(low, high), (_, y)| {
            (low.min(y), high.max(y))
        });
        let mut svg = String::new();
        self.draw(
            &mut svg,
            first..last.max(first * 1.01),
            lowest * 1.05..highest * 1.05 + 0.01,
        )
        .map_err(|error| error.to_string())?;
        Ok(svg)
    }

    fn draw(
        &self,
        into: &mut String,
        x: std::ops::Range<f64>,
        y: std::ops::Range<f64>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(into, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(x.log_scale(), y)?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_labels(6)
            .max_light_lines(1)
            .draw()?;
        for (number, one) in self.series.iter().enumerate() {
            let color = Palette99::pick(number).to_rgba();
            chart
                .draw_series(LineSeries::new(
                    one.points.iter().copied(),
                    color.stroke_width(2),
                ))?
                .label(&one.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2))
                });
        }
        for (number, one) in self.marks.iter().enumerate() {
            let color = Palette99::pick(self.series.len() + number).to_rgba();
            let cross = move |at| Cross::new(at, 5, color.stroke_width(2));
            chart
                .draw_series(one.points.iter().copied().map(cross))?
                .label(&one.name)
                .legend(move |(x, y)| Cross::new((x + 10, y), 5, color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "a <title> & more".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            series: vec![Series {
                name: "lirs".to_owned(),
                points,
            }],
            marks: Vec::new(),
        }
    }

    #[test]
    fn a_picture_has_its_lines_and_escapes_markup() {
        let svg = chart(vec![(1.0, 2.0), (10.0, 50.0)]).svg().expect("drawn");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("polyline") && svg.contains("lirs"));
        assert!(svg.contains("a &lt;title&gt; &amp; more"), "{svg}");
        // One point makes a picture, too.
        chart(vec![(4.0, 0.0)]).svg().expect("drawn");
        // So do negative values; all are within the picture.
        let svg = chart(vec![(1.0, -3.0), (10.0, -1.0)]).svg().expect("drawn");
        // The curve is recognized by its color, because axes are lines as well.
        let mut lines = svg.lines().filter(|line| line.contains("#E6194B"));
        let line = lines.find_map(|line| line.split("points=\"").nth(1));
        let line = line
            .and_then(|line| line.split('"').next())
            .expect("a line");
        let heights = line
            .split_whitespace()
            .filter_map(|point| point.split(',').nth(1));
        let heights: Vec<i32> = heights.map(|y| y.parse().expect("a number")).collect();
        assert!(heights.iter().all(|y| (0..500).contains(y)), "{heights:?}");
        assert!(heights[0] > heights[1], "{heights:?}");
        assert!(chart(Vec::new()).svg().is_err());
    }

    #[test]
    fn marks_are_in_the_picture_with_their_names() {
        let plain = chart(vec![(1.0, 2.0), (10.0, 50.0)]);
        let before = plain.svg().expect("drawn");
        let marked = Chart {
            marks: vec![Series {
                name: "found <there>".to_owned(),
                points: vec![(1.0, 3.0), (20.0, 90.0)],
            }],
            ..plain
        };
        let svg = marked.svg().expect("drawn");
        assert!(svg.contains("found &lt;there&gt;"), "{svg}");
        // A cross consists of two lines in its own color; the legend has another.
        let crosses = |svg: &str| svg.matches("#3CB44B").count();
        assert_eq!((crosses(&before), crosses(&svg)), (0, 6), "{svg}");
    }
}
