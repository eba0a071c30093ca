// Charts that answer to the pointer: Vega-Lite drawn in the page by libraries of this server. Their expressions are interpreted, not
// compiled (`ast`), so that the page's policy can forbid to compile anything.
const EMBED = { renderer: "svg", ast: true, actions: false, defaultStyle: false, tooltip: { disableDefaultStyle: true } };
let libraries = null;

function embed() { return libraries ??= import("/assets/vega.js").then(() => window.vegaEmbed); }

// Draws the answer to `query` into `box`; false where there is no picture or no library.
export async function draw(box, query) {
  try {
    const told = await fetch(`/api/chart.json?${query}`);
    if (!told.ok) return false;
    const spec = await told.json(), embedded = await embed();
    box.setAttribute("aria-label", [spec.title?.text, ...(spec.title?.subtitle ?? [])].flat().filter(Boolean).join(", "));
    await embedded(box, spec, EMBED);
    return true;
  } catch {
    return false;
  }
}
