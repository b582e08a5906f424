// Makes characters visible that would change how a text looks without being seen: controls, and marks of writing direction. Names come
// from the objects of a cluster, and anyone who may create an object chooses them. Pure.

const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]|\u034f|\u115f|\u1160|\u17b4|\u17b5|\u3164|\uffa0/gu

/** Writes a right-to-left override as `⟨U+202E⟩`. Line ends and tabs become spaces. */
export const showHidden = (text: string): string =>
  text.replace(hidden, (character) =>
    /[\t\n\r]/.test(character)
      ? ' '
      : `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}⟩`,
  )
