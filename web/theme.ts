// The theme: that of the system, or the one that the reader chose.

export const themes = ['auto', 'light', 'dark'] as const
export type Theme = (typeof themes)[number]

const key = 'sluice-theme'

export function readTheme(): Theme {
  const kept = localStorage.getItem(key)
  return themes.find((theme) => theme === kept) ?? 'auto'
}

export function applyTheme(theme: Theme): void {
  if (theme === 'auto') delete document.documentElement.dataset.theme
  else document.documentElement.dataset.theme = theme
  localStorage.setItem(key, theme)
  dispatchEvent(new Event('themechange'))
}

/** Calls the listener when the colours may have changed. */
export function watchTheme(listener: () => void): () => void {
  const system = matchMedia('(prefers-color-scheme: dark)')
  addEventListener('themechange', listener)
  system.addEventListener('change', listener)
  return () => {
    removeEventListener('themechange', listener)
    system.removeEventListener('change', listener)
  }
}
