// Line charts as SVG: panels beside each other, one legend. Enough for a program's --plot; no styling beyond that.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace runtime {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // finite
};

struct PlotPanel {
  std::string title, x, y;
  std::vector<PlotLine> lines;
};

namespace svg {

inline std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

inline std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

inline const char* colour(std::size_t i) {
  static constexpr const char* colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                            "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};
  return colours[i % (sizeof colours / sizeof *colours)];
}

/// A step of 1, 2 or 5 times a power of ten that cuts `span` into about five.
inline double tick(double span) {
  const double power = std::pow(10.0, std::floor(std::log10(span / 5)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (span / (m * power) <= 6) return m * power;
  }
  return 10 * power;
}

inline std::string label(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\">" + escaped(text) +
         "</text>\n";
}

inline std::string panel(const PlotPanel& p, double left, double width, double height) {
  const double x0 = left + 64, x1 = left + width - 16, y0 = height - 44, y1 = 32;
  double most_x = 0, most_y = 0;
  for (const PlotLine& line : p.lines) {
    for (const auto& [x, y] : line.points) {
      most_x = std::max(most_x, x);
      most_y = std::max(most_y, y);
    }
  }
  most_x = most_x > 0 ? most_x : 1;
  most_y = most_y > 0 ? most_y : 1;
  std::string out = label((x0 + x1) / 2, 18, "middle", p.title) + label((x0 + x1) / 2, height - 8, "middle", p.x) +
                    label(x0 - 56, y1 - 12, "start", p.y);
  for (double y = 0; y <= most_y; y += tick(most_y)) {
    const double at = y0 - (y0 - y1) * y / most_y;
    out += "<path d=\"M" + number(x0) + " " + number(at) + "H" + number(x1) + "\" stroke=\"#dddddd\"/>\n" +
           label(x0 - 6, at + 4, "end", number(y));
  }
  for (double x = 0; x <= most_x; x += tick(most_x)) {
    out += label(x0 + (x1 - x0) * x / most_x, y0 + 18, "middle", number(x));
  }
  for (std::size_t i = 0; i < p.lines.size(); ++i) {
    out += "<polyline fill=\"none\" stroke=\"" + std::string(colour(i)) + "\" stroke-width=\"1.5\" points=\"";
    for (const auto& [x, y] : p.lines[i].points) {
      out += number(x0 + (x1 - x0) * x / most_x) + "," + number(y0 - (y0 - y1) * y / most_y) + " ";
    }
    out += "\"/>\n";
  }
  return out;
}

}  // namespace svg

/// The panels in a row. All have the same lines, in the same order; the legend names those of the first.
inline std::string svg_plot(const std::vector<PlotPanel>& panels) {
  constexpr double width = 360, height = 280, legend = 140;
  const double whole = width * static_cast<double>(panels.size()) + legend;
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + svg::number(whole) + " " +
                    svg::number(height) + "\" font-family=\"sans-serif\" font-size=\"11\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  for (std::size_t i = 0; i < panels.size(); ++i) {
    out += svg::panel(panels[i], width * static_cast<double>(i), width, height);
  }
  for (std::size_t i = 0; !panels.empty() && i < panels[0].lines.size(); ++i) {
    const double y = 40 + 18 * static_cast<double>(i), x = whole - legend;
    out += "<path d=\"M" + svg::number(x) + " " + svg::number(y) + "h18\" stroke-width=\"2\" stroke=\"" +
           svg::colour(i) + "\"/>\n" + svg::label(x + 24, y + 4, "start", panels[0].lines[i].name);
  }
  return out + "</svg>\n";
}

}  // namespace runtime
