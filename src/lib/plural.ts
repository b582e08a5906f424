// Formats a count with its noun, for messages to people: "1 service", "2 services". Pure.

export const count = (n: number, noun: string): string => `${n} ${noun}${n === 1 ? '' : 's'}`
