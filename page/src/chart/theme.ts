// Whether the reader's system is dark, as a hook: canvases do not follow style sheets.
import { useEffect, useState } from "preact/hooks";

export function useIsDark(): boolean {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [isDark, setIsDark] = useState(query.matches);
  useEffect(() => {
    const follow = (): void => setIsDark(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return isDark;
}
