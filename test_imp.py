raise ValueError("import")
