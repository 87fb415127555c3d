// The page begins here: takes the token out of the address, then draws the view that the address names.
import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/views.css";
import "./style/timeline.css";
import "./style/samples.css";
import { render } from "preact";
import { storeToken } from "./api/client.ts";
import { App } from "./app.tsx";

storeToken();
addEventListener("hashchange", storeToken);
const root = document.getElementById("page");
if (root) render(<App />, root);
