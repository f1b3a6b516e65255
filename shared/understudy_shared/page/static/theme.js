// The button that changes the theme: the system's, light, dark. This browser stores the choice.

const KEY = "understudy-theme";
const THEMES = ["system", "light", "dark"];

export function startTheme(button, onChange) {
  const root = document.documentElement;
  const show = () => {
    button.textContent = `Theme: ${root.dataset.theme ?? "system"}`;
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // Storage is refused: the choice holds for this page only.
    }
    show();
    onChange();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  show();
}
