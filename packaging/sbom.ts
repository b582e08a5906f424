// Writes the software bill of materials of an image or an executable as SPDX 2.3 JSON. Pure.

export interface Component {
  readonly name: string
  readonly version: string
  /** A package URL: `pkg:npm/yaml@2.9.1`. */
  readonly purl: string
  readonly license?: string
}

/** `seconds` is the time of creation; a document of the same components is the same text. */
export function writeSbom(name: string, components: readonly Component[], seconds: number): string {
  const sorted = [...components].sort((a, b) => (a.purl < b.purl ? -1 : 1))
  return JSON.stringify({
    spdxVersion: 'SPDX-2.3',
    dataLicense: 'CC0-1.0',
    SPDXID: 'SPDXRef-DOCUMENT',
    name,
    documentNamespace: `https://sluice.invalid/spdx/${encodeURIComponent(name)}`,
    creationInfo: { created: new Date(seconds * 1000).toISOString().replace('.000Z', 'Z'), creators: ['Tool: sluice'] },
    packages: sorted.map((component, index) => ({
      SPDXID: `SPDXRef-Package-${index}`,
      name: component.name,
      versionInfo: component.version,
      downloadLocation: 'NOASSERTION',
      filesAnalyzed: false,
      licenseConcluded: 'NOASSERTION',
      licenseDeclared: component.license ?? 'NOASSERTION',
      copyrightText: 'NOASSERTION',
      externalRefs: [{ referenceCategory: 'PACKAGE-MANAGER', referenceType: 'purl', referenceLocator: component.purl }],
    })),
    relationships: sorted.map((_, index) => ({
      spdxElementId: 'SPDXRef-DOCUMENT',
      relationshipType: 'DESCRIBES',
      relatedSpdxElement: `SPDXRef-Package-${index}`,
    })),
  })
}
