// Asks for the viewer's own Kubernetes token, with which the page's server reads, and with nothing else.
import { useId, useState } from "preact/hooks";
import { giveToken } from "../api/client.ts";

export function Login({ message }: { message: string }) {
  const id = useId();
  const [token, setToken] = useState("");
  const send = (event: Event): void => {
    event.preventDefault();
    giveToken(token.trim());
    setToken("");
  };
  return (
    <form class="login" onSubmit={send}>
      <h1>Your Kubernetes token</h1>
      <p role="status">{message}</p>
      <div class="field">
        <label for={id}>Token</label>
        <input
          id={id}
          type="password"
          autocomplete="off"
          spellcheck={false}
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
        />
      </div>
      <button type="submit" disabled={token.trim() === ""}>
        Show my jobs
      </button>
      <p class="hint">
        You see what it may read, such as with the token of <code>kubectl create token ACCOUNT -n NAMESPACE</code>. It stays in
        this page&rsquo;s memory until you close or reload it.
      </p>
    </form>
  );
}
