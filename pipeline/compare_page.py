"""A comparison as one page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

import edgepipe
from edgepipe.pipeline.compare import Comparison, letter
from edgepipe.pipeline.compare_markdown import NOTE, figure_text
from edgepipe.pipeline.compare_plots import figures
from edgepipe.pipeline.svg_plot import marker

_TEMPLATE = "compare_page.html"


def comparison_page(comparison: Comparison) -> str:
    """HTML. What reports say is escaped; the plots' text is already."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure_text, "letter": letter, "marker": lambda index: Markup(marker(index))}
    groups = list(dict.fromkeys(row.metric.group for row in comparison.rows))
    return environment.get_template(_TEMPLATE).render(
        reports=comparison.reports,
        groups={group: [row for row in comparison.rows if row.metric.group == group] for group in groups},
        differences=comparison.differences,
        figures=[figure._replace(svg=Markup(figure.svg)) for figure in figures(comparison.reports)],
        note=NOTE,
        version=edgepipe.__version__,
    )
