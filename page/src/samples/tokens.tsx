// The tokens of a response, each with a ground by one of its values; arrow keys go from token to token.
import { useState } from "preact/hooks";
import { useFetched } from "../api/polled.ts";
import type { Sample, Token } from "../api/types.ts";
import { shadeSigned } from "../palette.ts";
import { Problem } from "../parts.tsx";
import type { Source } from "./paging.ts";
import { describeToken, listModes, MODE_HELP, shadeToken, type Mode } from "./shade.ts";

export function Tokens({ source, sample }: { source: Source; sample: Sample }) {
  const path = `${source.one}/${encodeURIComponent(sample.id)}/tokens`;
  const { data, error } = useFetched<{ tokens: Token[] }>(path);
  const [chosen, setMode] = useState<Mode>("ratio");
  if (error) return <Problem error={error} />;
  if (data === null) return <p class="hint">Reading the tokens…</p>;
  const modes = listModes(data.tokens);
  const mode = modes.includes(chosen) ? chosen : (modes[0] ?? chosen);
  return (
    <div class="tokens">
      <fieldset class="choice">
        <legend>Colour tokens by</legend>
        {modes.map((other) => (
          <label key={other} title={MODE_HELP[other][1]}>
            <input type="radio" name={`mode-${sample.id}`} checked={mode === other} onChange={() => setMode(other)} />
            {MODE_HELP[other][0]}
          </label>
        ))}
      </fieldset>
      {modes.length > 0 && <p class="hint">{MODE_HELP[mode][1]}</p>}
      <TokenText tokens={data.tokens} mode={mode} />
    </div>
  );
}

function TokenText({ tokens, mode }: { tokens: Token[]; mode: Mode }) {
  const [place, setPlace] = useState(0);
  const current = tokens[Math.min(place, tokens.length - 1)];
  const move = (event: KeyboardEvent): void => {
    const way = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length }[event.key];
    if (way === undefined) return;
    event.preventDefault();
    setPlace((last) => Math.max(0, Math.min(tokens.length - 1, last + way)));
  };
  return (
    <>
      <div class="text" tabIndex={0} role="group" aria-label="Tokens; arrow keys go from one to the next" onKeyDown={move}>
        {tokens.map((token, index) => {
          const shade = shadeToken(token, mode, tokens);
          return (
            <span
              key={index}
              class={index === place ? "token current" : "token"}
              data-shade={shade?.toFixed(3)}
              style={{ backgroundColor: shade ? shadeSigned(shade) : "transparent" }}
              title={describeToken(token)}
              onClick={() => setPlace(index)}
            >
              {token.text}
            </span>
          );
        })}
      </div>
      {current && (
        <p class="readout" role="status">
          <code>{JSON.stringify(current.text)}</code> {describeToken(current)}
        </p>
      )}
    </>
  );
}
