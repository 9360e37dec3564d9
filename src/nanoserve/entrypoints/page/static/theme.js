// Light or dark: what the system prefers, unless the button says otherwise. The choice outlives the tab; nothing else does.

const CHOICES = ["system", "light", "dark"];
const THEME_KEY = "nanoserve.theme";
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
let themeChoice = readTheme();

showTheme();
systemIsDark.addEventListener("change", showTheme);

/** Make the button go round the three choices. */
export function wireThemeButton(button) {
  const label = () => {
    button.textContent = `Theme: ${themeChoice}`;
  };
  label();
  button.addEventListener("click", () => {
    themeChoice = CHOICES[(CHOICES.indexOf(themeChoice) + 1) % CHOICES.length];
    keepTheme();
    showTheme();
    label();
  });
}

function showTheme() {
  const isDark = themeChoice === "dark" || (themeChoice === "system" && systemIsDark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

function readTheme() {
  try {
    const kept = localStorage.getItem(THEME_KEY);
    return CHOICES.includes(kept) ? kept : "system";
  } catch {
    return "system"; // a file opened from a disk may have no storage
  }
}

function keepTheme() {
  try {
    localStorage.setItem(THEME_KEY, themeChoice);
  } catch {
    // as above: the choice then lasts as long as the page
  }
}
